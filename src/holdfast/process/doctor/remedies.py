"""Lists the holdfast code that replaces code which leaks or fails, with its documentation page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Remedy:
    """Holds two lines of code, and the path of the documentation page in the repository."""

    code: tuple[str, str]
    page: str

    def __str__(self) -> str:
        first, second = self.code
        return f"Write `{first}` and `{second}`; see {self.page}."


_IMPORT = "import holdfast as hold"

# Its iterators, batches and exceptions hold no descriptors, and its errors name dead workers.
LOADER = Remedy(
    ("from holdfast.torch import DataLoader", "loader = DataLoader(dataset, batch_size=32, num_workers=4)"),
    "docs/torch.md",
)
# Skips corrupt records and shards, and lists them.
READ_AROUND = Remedy(
    (_IMPORT, 'ds = hold.read("data/*", on_corrupt="skip").batch(64)'),
    "docs/read.md",
)
# Bounds open files and memory, and checks that the files exist before the first batch.
READ_BOUNDED = Remedy(
    (_IMPORT, 'ds = hold.read("data/*").limits(open_files=64, memory="2GB")'),
    "docs/read.md",
)
# Every process writes a part of its own, which appears complete or not at all.
WRITE = Remedy(
    ('out = hold.write("run.hold", schema)', 'with out.part(task="rank3") as part: part.append(**sample)'),
    "docs/write.md",
)
# Admits one process at a time, and names the holder.
LOCKED = Remedy(
    (_IMPORT, 'with hold.locked("run.h5", timeout=60): ...'),
    "docs/locks.md",
)
# Refuses to open files in ways that lose data.
PROTECT = Remedy(
    (_IMPORT, "hold.protect_h5py()  # refuses opens that lose data"),
    "docs/locks.md",
)
# Finds descriptors that stay open, and the objects that keep them.
FIND_LEAK = Remedy(
    (
        "with hold.no_leaks(): job()  # raises if something stays open",
        "print(hold.owners_summary())  # what keeps it open",
    ),
    "docs/doctor.md",
)

REMEDIES = (LOADER, READ_AROUND, READ_BOUNDED, WRITE, LOCKED, PROTECT, FIND_LEAK)

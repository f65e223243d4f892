"""What to write instead: holdfast's own answer to an error or a leak, in two lines of code, and the page on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Remedy:
    """`page` is a page of the documentation, by its name in the repository."""

    code: tuple[str, str]
    page: str

    def __str__(self) -> str:
        first, second = self.code
        return f"Write `{first}` and `{second}`; {self.page} tells more."


_IMPORT = "import holdfast as hold"

# torch's loader, whose iterators, kept batches and kept errors hold no descriptor, and whose dead workers are named.
LOADER = Remedy(
    ("from holdfast.torch import DataLoader", "loader = DataLoader(dataset, batch_size=32, num_workers=4)"),
    "docs/torch.md",
)
# Damaged records and shards are left out and listed.
READ_AROUND = Remedy(
    (_IMPORT, 'ds = hold.read("data/*", on_corrupt="skip").batch(64)'),
    "docs/read.md",
)
# Open files and memory have a bound, and the files are looked for before the first batch.
READ_BOUNDED = Remedy(
    (_IMPORT, 'ds = hold.read("data/*").limits(open_files=64, memory="2GB")'),
    "docs/read.md",
)
# Every process writes a part of its own, which appears whole or not at all.
WRITE = Remedy(
    ('out = hold.write("run.hold", schema)', 'with out.part(task="rank3") as part: part.append(**sample)'),
    "docs/write.md",
)
# One at a time, and who holds it is named.
LOCKED = Remedy(
    (_IMPORT, 'with hold.locked("run.h5", timeout=60): ...'),
    "docs/locks.md",
)
# Opens that would lose data are refused.
PROTECT = Remedy(
    (_IMPORT, "hold.protect_h5py()  # refuses opens that lose data"),
    "docs/locks.md",
)
# Where descriptors are left open, and which objects keep them.
FIND_LEAK = Remedy(
    ("with hold.no_leaks(): job()  # raises if some stay open", "print(hold.owners_summary())  # who keeps them"),
    "docs/look.md",
)

REMEDIES = (LOADER, READ_AROUND, READ_BOUNDED, WRITE, LOCKED, PROTECT, FIND_LEAK)

"""Works through the jobs in a folder, under a hold.Guard that replaces the process before it runs out of descriptors.

    python examples/guard_worker.py jobs

A job is a file in jobs/new. A worker claims it by moving it to jobs/active, and posts it by moving it to jobs/done, so
that several workers can share the folder, and no job is lost or done twice when one of them is replaced. Its work is a
line in jobs/ledger. The deployment files in docs/deploy run this program.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import holdfast as hold


def arguments() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("jobs", type=Path)
    asked.add_argument("--leak", type=int, default=0, metavar="N", help="leave N pipes open for each job")
    return asked.parse_args()


class JobFolder:
    def __init__(self, folder: Path) -> None:
        self.new, self.active, self.done = (folder / name for name in ("new", "active", "done"))
        for place in (self.new, self.active, self.done):
            place.mkdir(parents=True, exist_ok=True)
        self.return_orphans()

    def return_orphans(self) -> None:
        """Makes the jobs of workers that were killed new again."""
        for claimed in self.active.iterdir():
            job, _, pid = claimed.name.rpartition(".")
            if pid == str(os.getpid()) or not Path(f"/proc/{pid}").exists():
                claimed.rename(self.new / job)

    def poll(self) -> Path | None:
        """Claims a job; None if there is none."""
        for job in sorted(self.new.iterdir()):
            claimed = self.active / f"{job.name}.{os.getpid()}"
            try:
                return job.rename(claimed)
            except FileNotFoundError:
                continue  # another worker was first
        return None

    def post(self, claimed: Path) -> None:
        claimed.rename(self.done / claimed.stem)


def run(job: str, ledger: Path, leak: int, leaked: list[int]) -> None:
    for _ in range(leak):
        reader, writer = os.pipe()
        os.close(writer)
        leaked.append(reader)  # as a library does that forgets to close it
    with open(ledger, "a") as file:
        file.write(f"{job} {os.getpid()}\n")


def main() -> None:
    given = arguments()
    leaked: list[int] = []
    guard = hold.Guard(
        name="worker",
        fds=hold.Cap(soft=0.5, hard=0.85),
        progress_timeout="10min",
        drain_timeout="60s",
    )
    with guard:
        folder = JobFolder(given.jobs)
        while not guard.draining:
            try:
                job = folder.poll()
                guard.ok()  # a success, even "nothing to do"
            except OSError as error:
                guard.fail(error)
                guard.wait("1s")
                continue
            if job is None:
                guard.wait("0.05s")
                continue
            with guard.job(job.stem):
                run(job.stem, given.jobs / "ledger", given.leak, leaked)
                folder.post(job)
    raise SystemExit(guard.exit_code)


if __name__ == "__main__":
    main()

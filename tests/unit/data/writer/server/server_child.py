"""A central writer on a small disk: run as a program in a mount of its own; says in JSON what became of the rows."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import holdfast as hold
from holdfast.data.formats.registry import open_shard
from holdfast.data.writer.dataset_writer import write
from holdfast.data.writer.server.client import connect
from holdfast.errors import WriteError


def main() -> None:
    folder, seal = Path(sys.argv[1]), sys.argv[2] == "seal"
    out = write(folder / "run", {"x": hold.Int64(16)})
    free = os.statvfs(folder)
    with open(folder / "ballast", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - 1_200_000)
    found: dict[str, object] = {}
    with out.server(chunk_rows=64, segment_bytes=int(sys.argv[3]), seal=seal, queue_bytes="1MB") as server:
        with connect(server.address, "p", timeout=30) as producer:
            number = 0
            try:
                while True:
                    producer.append(x=[number] * 16, timeout=1)
                    number += 1
            except WriteError as error:
                found |= {"refused": type(error).__name__, "said": str(error), "acked": producer.acked}
            os.unlink(folder / "ballast")
            wanted = producer.next_seq + 500
            for number in range(producer.next_seq, wanted):
                producer.append(x=[number] * 16)
    with out.server():  # makes the parts, if the first one was not to
        pass
    rows: list[int] = []
    for record in out.parts():
        with open_shard(out.path_of(record), out.schema) as shard:
            rows += shard.read(0, len(shard), out.schema)["x"][:, 0].tolist()
    right = sorted(rows) == list(range(wanted))
    print(json.dumps({**found, "expected": wanted, "rows": len(rows), "right": right, "ok": out.verify().ok}))


if __name__ == "__main__":
    main()

"""The acknowledgement protocol against a model: any order of sending, losing, crashing, sealing and taking over.

Journal, marks, epochs and the sealer are the real ones; the network and the processes are played: what is under way may
be lost, a server may vanish between any two steps, a torn tail may be left behind, a producer may begin anew.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from factories_central import SMALL, by_producer
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from holdfast.data.formats.row_buffers import buffers_of
from holdfast.data.writer.dataset_writer import write
from holdfast.data.writer.server import journal
from holdfast.data.writer.server.frame_builder import FrameBuilder, WireFrame
from holdfast.data.writer.server.journal import Journal
from holdfast.data.writer.server.leader_epoch import LeaderEpoch
from holdfast.data.writer.server.protocol import FrameLayout, pack_head, pack_meta
from holdfast.data.writer.server.sealer_main import seal
from holdfast.schema import schema_to_json

PRODUCERS = ("a", "b")
CHUNK = 4
journal.LEAST_SPARE_BYTES = 0  # files are used again, however small they are


class Producing:
    """What a producer knows: the frames it made that were not acknowledged."""

    def __init__(self, mark: int) -> None:
        self.acked = self.seq = mark
        self.frames: list[WireFrame] = []


class Central(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.out = write(self.folder / "run", SMALL)
        self.layout = FrameLayout(SMALL, CHUNK)
        self.told = dict.fromkeys(PRODUCERS, 0)  # acknowledged, to whichever process had the name
        self.start_server()
        self.producing = {name: Producing(0) for name in PRODUCERS}

    def start_server(self) -> None:
        self.epoch = LeaderEpoch(self.out.folder)
        how = {"schema": schema_to_json(SMALL), "chunk_rows": CHUNK, "codec": None}
        self.journal = Journal(self.out.folder, self.epoch.number, how)

    @rule(name=st.sampled_from(PRODUCERS), count=st.integers(1, CHUNK))
    def make_frame(self, name: str, count: int) -> None:
        one = self.producing[name]
        chunk = FrameBuilder(self.layout)
        chunk.add(buffers_of(SMALL, {"x": range(one.seq, one.seq + count)})[0], 0, count)
        one.frames.append(chunk.take(one.seq))
        one.seq += count

    @rule(name=st.sampled_from(PRODUCERS), skip=st.integers(0, 2), is_heard=st.booleans())
    def send(self, name: str, skip: int, is_heard: bool) -> None:
        """One of its frames arrives, which may be the wrong one. The acknowledgement may be lost."""
        one = self.producing[name]
        if skip >= len(one.frames):
            return
        frame, mark = one.frames[skip], self.journal.watermarks.get(name, 0)
        if frame.end > mark:
            if frame.first != mark:
                return  # refused
            self.journal.append(self.packed(name, frame), 1, {name: frame.end})
            self.epoch.check()
        if is_heard:
            self.receive(name, self.journal.watermarks[name])

    def packed(self, name: str, frame: WireFrame) -> list[Any]:
        meta = pack_meta(name, [len(piece) for piece in frame.pieces], frame.crcs)
        head = pack_head(
            meta,
            flags=frame.flags,
            epoch=self.epoch.number,
            first=frame.first,
            rows=frame.rows,
            payload_bytes=frame.bytes,
        )
        return [head, *frame.pieces]

    def receive(self, name: str, mark: int) -> None:
        one = self.producing[name]
        assert mark >= self.told[name], f"{name} was told {self.told[name]}, now {mark}"
        self.told[name] = one.acked = mark
        one.frames = [frame for frame in one.frames if frame.end > mark]

    @rule()
    def close_segment(self) -> None:
        self.journal.roll_segment()

    @precondition(lambda self: self.journal.closed)
    @rule(dies=st.booleans())
    def seal_one(self, dies: bool) -> None:
        """The server may die between the part's commit and the deletion of its segment."""
        job = self.journal.closed[0]
        seal(job.path, job.end, job.before)
        if dies:
            self.crash_server(0)
        else:
            self.journal.sealed(job)

    @rule(torn=st.integers(0, 60))
    def crash_server(self, torn: int) -> None:
        """What it was writing last is torn. The next one greets the producers with what it knows."""
        if self.journal.current is not None and torn:
            frame = FrameBuilder(self.layout)
            frame.add(buffers_of(SMALL, {"x": [0]})[0], 0, 1)
            data = b"".join(bytes(part) for part in self.packed("a", frame.take(self.journal.watermarks.get("a", 0))))
            os.pwrite(self.journal.current.fd, data[: min(torn, len(data) - 1)], self.journal.current.end)
        self.journal.close()
        self.epoch.close()
        self.start_server()
        for name in PRODUCERS:
            self.receive(name, self.journal.watermarks.get(name, 0))

    @rule(name=st.sampled_from(PRODUCERS))
    def crash_producer(self, name: str) -> None:
        mark = self.journal.watermarks.get(name, 0)
        assert mark >= self.told[name]
        self.producing[name] = Producing(mark)

    def teardown(self) -> None:
        if not hasattr(self, "journal"):
            return
        try:
            watermarks = dict(self.journal.watermarks)
            self.journal.roll_segment()
            while self.journal.closed:
                job = self.journal.closed[0]
                seal(job.path, job.end, job.before)
                self.journal.sealed(job)
            rows = {name: column["x"] for name, column in by_producer(self.out).items()}
            assert rows == {name: list(range(mark)) for name, mark in watermarks.items()}
            assert all(watermarks.get(name, 0) >= told for name, told in self.told.items())
        finally:
            self.journal.close()
            self.epoch.close()
            shutil.rmtree(self.folder)


Central.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestCentral = Central.TestCase

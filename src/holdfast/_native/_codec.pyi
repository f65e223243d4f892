"""The compiled codec's types. `pure.py` has the same face; what each function does is said in `codec.py`."""

from collections.abc import Sequence
from typing import Any

from typing_extensions import Buffer

from .codec import ColumnBuffers, Fault, Field

class Decoder:
    def __new__(cls, fields: Sequence[Field]) -> Decoder: ...
    def feed(
        self, buf: Buffer, start: int, stop: int, verify_data: bool, max_rows: int, record: int, offset: int, /
    ) -> tuple[int, int, int, int]: ...
    def feed_file(
        self,
        fd: int,
        buf: Buffer,
        start: int,
        stop: int,
        offset: int,
        verify_data: bool,
        max_rows: int,
        record: int,
        most_bytes: int,
        /,
    ) -> tuple[int, int, int, int, int, int]: ...
    def rows(self) -> int: ...
    def faults(self) -> list[Fault]: ...
    def take(self) -> list[ColumnBuffers]: ...

class Encoder:
    def __new__(cls, fields: Sequence[Field]) -> Encoder: ...
    def encode(
        self, columns: Sequence[ColumnBuffers], rows: int, first: int, sequence: bool, stop_bytes: int, /
    ) -> tuple[Buffer, int]: ...

def crc32c(data: Buffer, value: int = 0, /) -> int: ...
def crc_kind() -> str: ...
def use_crc(allowed: int, /) -> None: ...
def scan(
    buf: Buffer, start: int, stop: int, verify_data: bool, starts: Any = None, base: int = 0, /
) -> tuple[int, int, int, int]: ...
def scan_file(
    fd: int,
    buf: Buffer,
    start: int,
    stop: int,
    offset: int,
    verify_data: bool,
    starts: Any,
    most_bytes: int,
    /,
) -> tuple[int, int, int, int, int, int]: ...
def records(
    buf: Buffer, start: int, stop: int, verify_data: bool, max: int, /
) -> tuple[list[bytes], int, int, int]: ...
def find_header(buf: Buffer, start: int, stop: int, /) -> int: ...
def find_end(buf: Buffer, start: int, stop: int, crc: int, /) -> tuple[int, int]: ...
def frame(data: Buffer, /) -> bytes: ...
def pieces(names: tuple[str, ...], columns: tuple[Any, ...], n: int, /) -> list[dict[str, Any]]: ...

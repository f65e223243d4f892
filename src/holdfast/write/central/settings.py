"""What a server is told when it starts."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ..._base.codecs import check_codec
from ..._base.units import parse_bytes

Ack = Literal["process", "disk"]

TOKEN = "HOLDFAST_TOKEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Validates itself. Sizes are bytes."""

    address: str | None = None  # None, "unix", "unix:/a/path.sock", "tcp://host:port"
    ack: Ack = "process"
    queue_bytes: int = 256_000_000
    segment_bytes: int = 64 << 20
    backlog_bytes: int = 4 << 30
    seal_after_s: float = 60.0
    seal: bool = True
    token: str | None = None
    take_over: bool = False
    chunk_rows: int | None = None
    codec: Any = None

    def __post_init__(self) -> None:
        if self.ack not in ("process", "disk"):
            raise ValueError(f'expected ack to be "process" or "disk", got {self.ack!r}')
        if not self.seal_after_s > 0:
            raise ValueError(f"expected seal_after_s to be above 0, got {self.seal_after_s!r}")
        if self.chunk_rows is not None and (not isinstance(self.chunk_rows, int) or self.chunk_rows < 1):
            raise ValueError(f"expected chunk_rows to be a number from 1 up, got {self.chunk_rows!r}")
        if self.is_tcp and not self.token:
            text = f"expected a token for a server that is reachable over the network: token=, {TOKEN}, --token-file"
            raise ValueError(text)
        check_codec(self.codec)

    @property
    def is_tcp(self) -> bool:
        return self.address is not None and self.address.startswith("tcp://")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def make_settings(**given: Any) -> Settings:
    """With sizes as people write them, and the token from the environment."""
    for name in ("queue_bytes", "segment_bytes", "backlog_bytes"):
        if name in given:
            given[name] = parse_bytes(given[name])
    if given.get("token") is None:
        given["token"] = os.environ.get(TOKEN)
    return Settings(**given)

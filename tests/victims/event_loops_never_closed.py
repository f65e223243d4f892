"""An event loop for every call, kept open: what people write who call async code from a worker."""

from __future__ import annotations

import asyncio

from rounds import KEPT, serve


async def _nothing() -> None:
    await asyncio.sleep(0)


def leak() -> None:
    for _ in range(2):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(_nothing())
        KEPT.append(loop)


def honest() -> None:
    asyncio.run(_nothing())


serve(leak, honest)

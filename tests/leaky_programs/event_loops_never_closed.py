"""Creates an event loop for every call and never closes it, as workers that call async code do."""

from __future__ import annotations

import asyncio

from leak_rounds import KEPT, serve


async def _nothing() -> None:
    await asyncio.sleep(0)


def leak() -> None:
    for _ in range(2):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(_nothing())
        KEPT.append(loop)


def clean() -> None:
    asyncio.run(_nothing())


serve(leak, clean)

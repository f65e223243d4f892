"""Pages for terminals that can show nothing but ASCII."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

# One for one, so that columns stay where they are.
_SIGNS = dict(zip("█▉▊▋▌▍▎▏░▁▂▃▄▅▆▇✓✗▲◌·–±×→…├└│─Δ", "#######|._.:-=+*+x^~,-~x>~|`|-d", strict=True))
_TABLE = str.maketrans(_SIGNS)


class AnyTerminal:
    """The same page with signs that can be shown."""

    def __init__(self, page: RenderableType) -> None:
        self._page = page

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType | Segment]:
        if not options.ascii_only:
            yield self._page
            return
        for segment in console.render(self._page, options):
            yield Segment(segment.text.translate(_TABLE), segment.style, segment.control)

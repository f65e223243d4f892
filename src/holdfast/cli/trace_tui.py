"""Implements the live view of `holdfast trace --live`."""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Static

from .._util.fds import point_to_null
from .._util.text import counted
from ..errors import HoldfastError
from ..process.fdtrace.recording import Outcome
from ..process.fdtrace.sites import Site, Statistics, rate, short
from ..process.fdtrace.trace_file import Trace

if TYPE_CHECKING:
    from .trace import Work

_COLUMNS = ("site", "function", "live", "growth", "made", "closed", "kinds")
_MAX_ROWS = 200


class TraceApp(App[None]):
    """Shows the sites that have descriptors open, the fastest growing first, while the program runs."""

    CSS = """
    #head, #status { height: auto; padding: 0 1; }
    #sites { height: 1fr; }
    #detail { height: auto; max-height: 12; padding: 0 1; border-top: solid $primary; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "pause", "pause", key_display="space"),
        Binding("i", "interrupt", "interrupt the program"),
        Binding("q,ctrl+c", "stop", "stop and save", priority=True),
    ]

    def __init__(self, name: str, run: Work, *, kills: bool) -> None:
        super().__init__()
        self.title = "holdfast trace"
        self._name = name
        self._run = run
        self._kills = kills
        self._pid = 0
        self._is_over = threading.Event()
        self._recording = threading.Thread(target=self._record, name="holdfast-trace", daemon=True)
        self._is_paused = False
        self._sites: list[Site] = []
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None

    def compose(self) -> ComposeResult:
        yield Static(Text(f"{self._name}: starting …"), id="head")
        table: DataTable[object] = DataTable(id="sites", cursor_type="row", zebra_stripes=True)
        yield table
        yield Static("", id="detail", markup=False)
        yield Static("", id="status", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        table = self.query_one("#sites", DataTable)
        for name in _COLUMNS:
            table.add_column(name, key=name)
        table.focus()
        self._recording.start()

    def end(self, number: int) -> None:
        """Ends the recording as the signal says: the program gets the signal."""
        if number == signal.SIGHUP:  # the terminal is gone, and the view would wait for it for ever
            for fd in range(3):
                if stat.S_ISCHR(os.fstat(fd).st_mode):  # isatty() denies it of one that is gone
                    point_to_null(fd, inheritable=True)
        self._is_over.set()
        self._signal(number)

    def outcome(self) -> Outcome:
        """Returns what was recorded, after the view has ended. Ends the program if the view ended before it."""
        if self._recording.is_alive() and not self._is_over.is_set():
            self.end(signal.SIGTERM)
        if self._recording.ident is not None:
            self._recording.join()
        if self._error is not None:
            raise self._error
        if self._outcome is None:
            raise HoldfastError("the live view ended before the program was recorded")
        return self._outcome

    # ---- the recording, in a thread

    def _record(self) -> None:
        try:
            self._outcome = self._run(self._watch, self._is_over.is_set, self._started)
        except Exception as error:  # noqa: BLE001 - raised again by outcome()
            self._error = error
        self._later(self._ended)

    def _later(self, function: Callable[..., None], *arguments: object) -> None:
        """Calls a function in the view's thread, without waiting for it: the view may have ended."""
        loop = self._loop
        if loop is not None and self.is_running:
            with suppress(RuntimeError):  # it ended just now
                loop.call_soon_threadsafe(self.call_later, function, *arguments)

    def _started(self, pid: int) -> None:
        self._pid = pid

    def _watch(self, trace: Trace) -> None:
        statistics = Statistics(trace)
        sites = [site for site in statistics.sites if site.live][:_MAX_ROWS]
        if not self._is_paused:
            self._later(self._show, trace, sites)

    def _ended(self) -> None:
        if self._outcome is None or self._is_over.is_set():
            self.exit()
            return
        trace = self._outcome.trace
        statistics = Statistics(trace)
        self._show(trace, [site for site in statistics.sites if site.live][:_MAX_ROWS])
        self.query_one("#status", Static).update(f"ended. {statistics.verdict()} Press q to save and leave.")

    # ---- drawing

    def _show(self, trace: Trace, sites: list[Site]) -> None:
        self._sites = sites
        running = sum(process.end_s is None for process in trace.processes)
        live = sum(site.live for site in sites)
        head = (
            f"{self._name}  ·  {trace.duration_s:.0f} s  ·  {counted(running, 'process')}  ·  {live} descriptors open"
        )
        self.query_one("#head", Static).update(Text(head))
        table = self.query_one("#sites", DataTable)
        at = table.cursor_row
        table.clear()
        for number, site in enumerate(sites):
            grows = site.growth > 0
            cells = (
                Text(short(site.where), style="bold red" if grows else ""),
                Text(site.frame.function),
                Text(str(site.live), justify="right"),
                Text(rate(site.per_minute) if grows else "", justify="right"),
                Text(str(site.born), justify="right"),
                Text(str(site.closed), justify="right"),
                Text(", ".join(site.kinds)),
            )
            table.add_row(*cells, key=str(number))
        if sites:
            table.move_cursor(row=min(max(at, 0), len(sites) - 1))
        self._show_detail()

    def _show_detail(self) -> None:
        at = self.query_one("#sites", DataTable).cursor_row
        lines: list[str] = []
        if 0 <= at < len(self._sites):
            site = self._sites[at]
            lines = [site.where, f"  {site.frame.text}", *(f"  kept by {owner}" for owner in site.owners[:3])]
            lines += [f"  opens {target}" for target in site.targets[:3]]
        self.query_one("#detail", Static).update("\n".join(lines))

    def on_data_table_row_highlighted(self) -> None:
        self._show_detail()

    # ---- keys

    def action_pause(self) -> None:
        self._is_paused = not self._is_paused
        self.query_one("#status", Static).update("paused" if self._is_paused else "")

    def action_interrupt(self) -> None:
        self._signal(signal.SIGINT)

    def action_stop(self) -> None:
        """Ends the program, as `kill` would; an attached process goes on. The view ends when it has ended."""
        if self._outcome is not None or self._error is not None:
            self.exit()
            return
        self.query_one("#status", Static).update("stopping …")
        # A second time for a program that ignores it.
        self._signal(signal.SIGKILL if self._is_over.is_set() else signal.SIGTERM)
        self._is_over.set()

    def _signal(self, number: int) -> None:
        if self._kills and self._pid:
            try:
                os.kill(self._pid, number)
            except ProcessLookupError:
                pass

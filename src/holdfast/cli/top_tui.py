"""Implements the live view of `holdfast top`."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static

from .._util.terminal import TableColumn
from ..process.doctor.diagnose import Examination, WatchTarget
from ..process.doctor.render import DoctorPage
from ..process.doctor.render_top import COLUMNS, SortOrder, arrange, cells_of, columns_for, detail, host_line, summary
from ..process.doctor.top_model import TopModel, TopRow, TopSnapshot

_SORTS = {"t": SortOrder.TREE, "f": SortOrder.FDS, "g": SortOrder.GROWTH, "m": SortOrder.MEMORY, "v": SortOrder.VERDICT}


def _aligned(cell: Text, column: TableColumn) -> Text:
    if column.right:
        cell.justify = "right"
    return cell


class DoctorScreen(ModalScreen[None]):
    """Shows the doctor page of one process over the table."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,d", "dismiss", "back")]

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._pid = pid

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="page"):
            yield Static(f"examining process {self._pid} …", id="doctor", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self._examine()

    @work(thread=True)
    def _examine(self) -> None:
        examination = Examination([self._pid])
        targets = examination.conclude()
        self.app.call_from_thread(self._show, targets, examination.errors)

    def _show(self, targets: list[WatchTarget], errors: list[str]) -> None:
        page = self.query_one("#doctor", Static)
        page.update(DoctorPage(targets[0], datetime.now()) if targets else "\n".join(errors))


class TopApp(App[None]):
    """Shows the process table, which keeps the selected process while rows come, go and move."""

    CSS = """
    #host, #summary { height: auto; padding: 0 1; }
    #rows { height: 1fr; }
    #detail { height: auto; max-height: 14; padding: 0 1; border-top: solid $primary; }
    DoctorScreen { align: center middle; }
    #page { width: 95%; height: 90%; border: round $primary; padding: 1 2; background: $surface; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "sort('f')", "fds"),
        Binding("g", "sort('g')", "growth"),
        Binding("m", "sort('m')", "memory"),
        Binding("v", "sort('v')", "verdict"),
        Binding("t", "sort('t')", "tree"),
        Binding("space", "pause", "pause", key_display="space"),
        Binding("d", "doctor", "doctor"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, model: TopModel, every_s: float) -> None:
        super().__init__()
        self.title = "holdfast top"
        self.order = SortOrder.TREE if model.chosen else SortOrder.FDS
        self.paused = False
        self._model = model
        self._every_s = every_s
        self._picture: TopSnapshot | None = None
        self._busy = False

    def compose(self) -> ComposeResult:
        yield Static("scanning …", id="host")
        table: DataTable[object] = DataTable(id="rows", cursor_type="row", zebra_stripes=True)
        yield table
        yield Static("", id="detail", markup=False)
        yield Static("", id="summary")
        yield Footer()

    def on_mount(self) -> None:
        self._table().focus()
        self.set_interval(self._every_s, self._tick)
        self._tick()

    def _table(self) -> DataTable[object]:
        return self.query_one("#rows", DataTable)

    # ---- refreshing --------------------------------------------------------------------------------------

    def _tick(self) -> None:
        # A scan may take longer than the interval, so the next one waits for it.
        if not self.paused and not self._busy:
            self._busy = True
            self._refresh()

    @work(thread=True)
    def _refresh(self) -> None:
        snapshot = self._model.refresh()
        self.call_from_thread(self._take, snapshot)

    def _take(self, snapshot: TopSnapshot) -> None:
        self._busy = False
        if not self.paused:
            self._picture = snapshot
            self._draw()

    def _draw(self) -> None:
        if self._picture is None:
            return
        table, chosen = self._table(), self.chosen
        rows = arrange(self._picture.rows, self.order)
        shown = columns_for(self.size.width)
        table.clear(columns=True)
        for at in shown:
            table.add_column(COLUMNS[at].head, key=COLUMNS[at].head)
        for row, stem in rows:
            table.add_row(*(_aligned(cells_of(row, stem)[at], COLUMNS[at]) for at in shown), key=str(row.pid))
        at = next((at for at, (row, _) in enumerate(rows) if chosen and row.pid == chosen.pid), 0)
        table.move_cursor(row=at)
        self.query_one("#host", Static).update(host_line(self._picture.host))
        self._draw_rest()

    def _draw_rest(self) -> None:
        rows = self._picture.rows if self._picture else ()
        said = summary(rows).append(f" · sorted: {self.order.value}", "dim")
        self.query_one("#summary", Static).update(said.append(" · paused", "bold yellow") if self.paused else said)
        row = self.chosen
        self.query_one("#detail", Static).update("" if row is None else detail(row))

    @property
    def chosen(self) -> TopRow | None:
        """Return the process under the cursor."""
        table = self._table()
        if self._picture is None or not table.is_valid_row_index(table.cursor_row):
            return None
        pid = table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value
        return next((row for row in self._picture.rows if str(row.pid) == pid), None)

    # ---- keys --------------------------------------------------------------------------------------------

    def on_resize(self) -> None:
        self._draw()

    def on_data_table_row_highlighted(self) -> None:
        self._draw_rest()

    def action_sort(self, key: str) -> None:
        self.order = _SORTS[key]
        self._draw()

    def action_pause(self) -> None:
        self.paused = not self.paused
        self._draw_rest()

    def action_doctor(self) -> None:
        if (row := self.chosen) is not None:
            self.push_screen(DoctorScreen(row.pid))

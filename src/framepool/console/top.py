"""`framepool top`: the streams at a glance in a terminal, sorted as one likes, and one of them in detail."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar, Final

from rich.markup import escape
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.coordinate import Coordinate
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static

from framepool.console.glance import Glance
from framepool.console.view import worded
from framepool.supervisor.notices import Level

UNKNOWN: Final = "–"
TURN_S: Final = 0.05
LOOK_S: Final = 1.0
TONES: Final = {"live": "green", "vacant": "bright_black", "dead": "bold red", "silent": "yellow", "stale": "yellow"}
LEVELS: Final = {Level.INFO: "bright_black", Level.WARNING: "yellow", Level.ALERT: "bold red"}
SHOWN_EVENTS: Final = 200

Cell = Callable[[dict[str, Any]], Text | str]
"""What stands in a column of a row; a string is shown as it is, whatever looks like markup in it."""
Key = Callable[[dict[str, Any]], Any]


def number(value: float | None, digits: int = 1) -> str:
    """A number of which the size matters more than the digits."""
    if value is None:
        return UNKNOWN
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.{digits}f}{unit}"
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.{digits}f}"


def duration(nanos: float | None) -> str:
    """A time in its own unit."""
    if nanos is None:
        return UNKNOWN
    for limit, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if nanos >= limit:
            return f"{nanos / limit:.1f} {unit}"
    return f"{nanos:.0f} ns"


def as_text(value: Text | str) -> Text:
    return value if isinstance(value, Text) else Text(value)


def toned(word: str) -> Text:
    return Text(word, TONES.get(word, ""))


def latency(part: str) -> Callable[[dict[str, Any]], int | None]:
    return lambda row: (row["latency"] or {}).get(part)


STREAM_COLUMNS: Final[dict[str, tuple[Cell, Key]]] = {
    "stream": (lambda row: str(row["id"]), lambda row: row["id"]),
    "name": (lambda row: row["name"], lambda row: row["name"]),
    "state": (lambda row: toned(row["state"]), lambda row: row["state"]),
    "frames/s": (lambda row: number(row["frames_per_s"]), lambda row: -(row["frames_per_s"] or 0)),
    "bytes/s": (lambda row: number(row["bytes_per_s"]), lambda row: -(row["bytes_per_s"] or 0)),
    "drops/s": (
        lambda row: Text(number(row["drops_per_s"]), "bold red" if row["drops_per_s"] else ""),
        lambda row: -(row["drops_per_s"] or 0),
    ),
    "p50": (lambda row: duration(latency("p50_ns")(row)), lambda row: -(latency("p50_ns")(row) or 0)),
    "p99": (lambda row: duration(latency("p99_ns")(row)), lambda row: -(latency("p99_ns")(row) or 0)),
    "readers": (lambda row: str(len(row["consumers"])), lambda row: -len(row["consumers"])),
    "epoch": (lambda row: str(row["epoch"]), lambda row: row["epoch"]),
    "remark": (lambda row: row["why"], lambda row: row["why"]),
}
CONSUMER_COLUMNS: Final[dict[str, Cell]] = {
    "consumer": lambda row: str(row["id"]),
    "state": lambda row: toned(row["state"]),
    "mode": lambda row: str(row["mode"] or UNKNOWN),
    "at most": lambda row: f"{row['max_rate_hz']} Hz" if row["max_rate_hz"] else "",
    "frames/s": lambda row: number(row["frames_per_s"]),
    "gaps": lambda row: number(row["drops_gap"]),
    "late": lambda row: number(row["drops_late"]),
    "p50": lambda row: duration(latency("p50_ns")(row)),
    "p99": lambda row: duration(latency("p99_ns")(row)),
}


class Table(DataTable[Text]):
    """A table whose rows are replaced by key, so that the cursor stays on what it stood on."""

    def show(self, columns: dict[str, Cell], rows: list[dict[str, Any]]) -> None:
        """Makes these the rows, in this order."""
        if not self.columns:
            for name in columns:
                self.add_column(name, key=name)
        selected = self._selected()
        keys = [str(row["id"]) for row in rows]
        if keys == [key.value for key in self.rows]:
            for at, row in enumerate(rows):
                for column, cell in enumerate(columns.values()):
                    self.update_cell_at(Coordinate(at, column), as_text(cell(row)), update_width=True)
            return
        self.clear()
        for key, row in zip(keys, rows, strict=True):
            self.add_row(*(as_text(cell(row)) for cell in columns.values()), key=key)
        if selected in keys:
            self.move_cursor(row=keys.index(selected))

    def _selected(self) -> str | None:
        if not self.row_count:
            return None
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value


class Streams(Screen[None]):
    """All streams."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "detail", priority=True),
        Binding("s", "sort(1)", "sort by next"),
        Binding("S", "sort(-1)", "by previous", show=False),
        Binding("r", "reverse", "reverse"),
        Binding("e", "app.push_screen('events')", "events"),
        Binding("q", "app.quit", "quit"),
    ]
    by = 0
    backwards = False

    def compose(self) -> ComposeResult:
        yield Static(id="totals")
        yield Table(cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        self.refresh_data()

    def refresh_data(self) -> None:
        """Shows the last look."""
        state = Top.of(self).state
        name, (_, key) = list(STREAM_COLUMNS.items())[self.by]
        rows = sorted(state["streams"], key=key, reverse=self.backwards)
        self.query_one(Table).show({column: cell for column, (cell, _) in STREAM_COLUMNS.items()}, rows)
        live = sum(row["state"] == "live" for row in rows)
        totals = state["totals"]
        self.query_one("#totals", Static).update(
            f"[b]framepool[/] {escape(state['host'])} · {escape(state['namespace'])}   [b]{live}[/]/{len(rows)} live   "
            f"[b]{number(totals['frames_per_s'])}[/] frames/s   [b]{number(totals['bytes_per_s'])}[/]B/s   "
            f"[b]{number(totals['drops_per_s'])}[/] drops/s   p99 [b]{duration(totals['latency_p99_ns'])}[/]   "
            f"[dim]by {name}{', reversed' if self.backwards else ''}[/]"
        )

    def action_sort(self, step: int) -> None:
        self.by = (self.by + step) % len(STREAM_COLUMNS)
        self.refresh_data()

    def action_reverse(self) -> None:
        self.backwards = not self.backwards
        self.refresh_data()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        chosen = event.column_index
        self.backwards = not self.backwards if chosen == self.by else False
        self.by = chosen
        self.refresh_data()

    def action_open(self) -> None:
        selected = self.query_one(Table)._selected()
        if selected is not None:
            self.app.push_screen(Detail(int(selected)))


class Detail(Screen[None]):
    """One stream and who reads it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "back"),
        Binding("q", "app.quit", "quit"),
    ]

    def __init__(self, stream_id: int) -> None:
        super().__init__()
        self.stream_id = stream_id

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(id="facts")
            yield Table(cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        self.refresh_data()

    def refresh_data(self) -> None:
        """Shows the last look."""
        rows = [row for row in Top.of(self).state["streams"] if row["id"] == self.stream_id]
        facts = self.query_one("#facts", Static)
        if not rows:
            facts.update(Text(f"stream {self.stream_id}: nobody speaks of it", "bold red"))
            return
        (row,) = rows
        metadata = "  ".join(f"{key}={value}" for key, value in row["metadata"].items())
        lines = [
            f"stream {row['id']}  {row['name']}  {row['summary']}",
            f"{row['state']}  {row['why']}",
            f"producer {row['producer'] or UNKNOWN}   epoch {row['epoch']}   {row['nslots']} slots   "
            f"{number(row['bytes'])}B shared   {row['leases']} leases" + ("   over a bridge" if row["bridged"] else ""),
            f"{number(row['frames_per_s'])} frames/s   {number(row['bytes_per_s'])}B/s   "
            f"{number(row['frame_bytes'])}B a frame   {number(row['drops_per_s'])} drops/s",
            metadata,
        ]
        facts.update(Text("\n".join(line for line in lines if line.strip())))
        self.query_one(Table).show(CONSUMER_COLUMNS, row["consumers"])


class Events(Screen[None]):
    """What happened, newest first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "back"),
        Binding("q", "app.quit", "quit"),
    ]

    def compose(self) -> ComposeResult:
        yield Table(cursor_type="row")
        yield Footer()

    def on_mount(self) -> None:
        self.refresh_data()

    def refresh_data(self) -> None:
        """Shows the last notices."""
        columns: dict[str, Cell] = {
            "time": lambda row: row["time"],
            "level": lambda row: Text(row["level"], LEVELS[row["level"]]),
            "stream": lambda row: row["stream"],
            "what": lambda row: row["what"],
        }
        self.query_one(Table).show(columns, Top.of(self).events[::-1])


class Top(App[None]):
    """The application: takes in what is said, and looks once a second."""

    TITLE = "framepool"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #totals, #facts { padding: 0 1; background: $panel; }
    #facts { height: auto; padding: 1 1; }
    DataTable { height: 1fr; }
    """
    SCREENS: ClassVar[dict[str, Callable[[], Screen[Any]]]] = {"streams": Streams, "events": Events}

    def __init__(self, glance: Glance) -> None:
        super().__init__()
        self._glance = glance
        self.state = glance.look()
        self.events: list[dict[str, Any]] = []
        self._noticed = 0

    @staticmethod
    def of(screen: Screen[Any]) -> Top:
        app = screen.app
        assert isinstance(app, Top)
        return app

    def on_mount(self) -> None:
        self.push_screen("streams")
        self.set_interval(TURN_S, self._turn)
        self.set_interval(LOOK_S, self._look)

    def _turn(self) -> None:
        self._glance.turn()

    def _look(self) -> None:
        self.state = self._glance.look()
        for notice in self._glance.notices(self._noticed):
            self._noticed = notice.number
            row = {
                "id": notice.number,
                "time": time.strftime("%H:%M:%S"),
                "level": notice.level,
                "stream": "" if notice.stream_id is None else str(notice.stream_id),
                "what": worded(notice),
            }
            self.events = [*self.events, row][-SHOWN_EVENTS:]
        refresh = getattr(self.screen, "refresh_data", None)
        if refresh is not None:
            refresh()

"""The last rows of some numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from framepool.console.history import History


@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=False))), st.integers(1, 8), st.integers(0, 10))
def test_the_last_rows_come_back_in_order(values: list[float | None], rows: int, last: int) -> None:
    history = History(("x",), rows)
    for number, value in enumerate(values):
        history.add(number, {"x": value, "other": 1.0})
    kept = values[-rows:]
    assert history.read()["x"] == kept
    assert history.read()["time"] == list(range(len(values)))[-rows:]
    assert history.read(("x",), last=last) == {"x": kept[len(kept) - min(last, len(kept)) :]}
    assert len(history) == len(kept)

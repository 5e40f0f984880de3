"""Naps of many threads and processes that end together."""

from __future__ import annotations

from pathlib import Path

from tests.support.c_program import run_c


def test_long_naps_end_at_common_instants_and_short_ones_on_time(tmp_path: Path) -> None:
    assert run_c(Path(__file__).parent / "nap_test.c", tmp_path) == "ok\n"

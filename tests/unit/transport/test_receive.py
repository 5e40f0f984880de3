"""The receiving side in C, with frames that no living media driver would show it."""

from __future__ import annotations

from pathlib import Path

from tests.support.c_program import run_c


def test_frames_overwritten_under_the_reader_make_no_message(tmp_path: Path) -> None:
    assert run_c(Path(__file__).parent / "receive_test.c", tmp_path) == "ok\n"

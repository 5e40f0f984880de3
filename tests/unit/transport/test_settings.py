"""Settings that cannot work are refused where they are made, by name."""

from __future__ import annotations

import os

import pytest

from framepool.errors import ConfigurationError
from framepool.transport.settings import KIB, AeronSettings, default_directory


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"driver_timeout": 0.0}, "driver_timeout"),
        ({"keepalive_interval": 3.0, "driver_timeout": 2.0}, "keepalive_interval"),
        ({"publication_unblock_timeout": 10.0}, "publication_unblock_timeout"),
        ({"client_liveness_timeout": 0.01}, "client_liveness_timeout"),
        ({"untethered_window_limit_timeout": 0.01}, "untethered_window_limit_timeout"),
        ({"untethered_resting_timeout": 0.02}, "untethered_resting_timeout"),
        ({"ipc_term_length": 100 * KIB}, "ipc_term_length"),
        ({"counters_length": 64 * KIB}, "counters_length"),
    ],
)
def test_setting_that_cannot_work_is_named(wrong: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        AeronSettings(directory="x", **wrong)  # type: ignore[arg-type]


def test_directory_is_aeron_dir_or_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERON_DIR", "/somewhere/aeron")
    assert AeronSettings().directory == "/somewhere/aeron"
    monkeypatch.delenv("AERON_DIR")
    assert default_directory().endswith(f"framepool-aeron-{os.getuid()}")

"""Configuration: what it holds with no file, what a file may say, and how it says no."""

from __future__ import annotations

from pathlib import Path

import pytest

from framepool.config import Config, default_profile, load, variables
from framepool.errors import ConfigurationError

GIB = 2**30


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "framepool.toml"
    path.write_text(text)
    return path


def test_no_file_is_a_valid_configuration() -> None:
    config = load(environ={})
    assert config == Config()
    assert config.stream_ids.control == 1000
    assert config.driver.lease_expiry_ms == 3 * config.driver.keepalive_interval_ms


def test_file_is_read(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        [driver]
        namespace = "lab1"
        [profiles.camera]
        nslots = 8
        pools = [{ pool_id = 1, stride_bytes = 1_048_576 }]
        [[streams]]
        stream_id = 10_000
        profile = "camera"
        """,
    )
    config = load(path, environ={})
    assert config.driver.namespace == "lab1"
    assert config.profile("camera").pools[0].stride_bytes == 2**20
    assert config.streams[0].stream_id == 10_000


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[driver]\nnamespce = 'x'", r"unknown field `namespce`.*\$\.driver"),
        ("[driver]\nannounce_period_ms = 'x'", r"Expected `int`.*\$\.driver\.announce_period_ms"),
        ("[driver]\nannounce_period_ms = 0", r"announce_period_ms"),
        ("[driver]\nshm_base_dir = 'x'", "absolute"),
        ("[driver]\nlease_expiry_ms = 1000", "two keepalive intervals"),
        ("[driver]\nclock = 'realtime_synced'", "clock_error_budget_us"),
        ("[driver]\naccess = 'group'", "group"),
        ("[stream_ids]\nqos = 1100", "descriptor and qos overlap at 1100"),
        ("[stream_ids]\npools = [10, 5]", "backwards"),
        ("[stream_ids]\npools = [1, 20_000]", "overlap"),
        ("[profiles.x]\nnslots = 6\npools = [{pool_id = 1, stride_bytes = 64}]", "power of two"),
        ("[profiles.x]\nnslots = 8\npools = [{pool_id = 1, stride_bytes = 192}]", "192"),
        ("[profiles.x]\nnslots = 8\npools = []", "at least one pool"),
        (
            "[profiles.x]\nnslots = 8\npools = [{pool_id = 1, stride_bytes = 64}, {pool_id = 1, stride_bytes = 128}]",
            "repeat",
        ),
        ("[[streams]]\nstream_id = 10_000\nprofile = 'none'", "no profile 'none'"),
        ("[[streams]]\nstream_id = 1\n[[streams]]\nstream_id = 1", "twice"),
        ("[driver\n", "line 1"),
    ],
)
def test_mistake_is_named_with_its_place(tmp_path: Path, text: str, complaint: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        load(path, environ={})
    assert str(path) in str(caught.value)


def test_missing_file_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"/no/such.toml: No such file"):
        load("/no/such.toml", environ={})


def test_environment_overrides_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[driver]\nnamespace = 'lab1'\nannounce_period_ms = 500")
    environ = {
        "FRAMEPOOL_DRIVER_NAMESPACE": "lab2",
        "FRAMEPOOL_DRIVER_LIMITS_MAX_STREAMS": "7",
        "FRAMEPOOL_DRIVER_PREFAULT": "true",
        "FRAMEPOOL_STREAM_IDS_CONTROL": "999",
    }
    config = load(path, environ)
    assert (config.driver.namespace, config.driver.announce_period_ms) == ("lab2", 500)
    assert config.driver.limits.max_streams == 7
    assert config.driver.prefault is True
    assert config.stream_ids.control == 999


def test_bad_override_names_the_variable() -> None:
    with pytest.raises(ConfigurationError, match="FRAMEPOOL_DRIVER_LIMITS_MAX_STREAMS"):
        load(environ={"FRAMEPOOL_DRIVER_LIMITS_MAX_STREAMS": "many"})


def test_every_scalar_has_a_variable_of_its_own() -> None:
    names = [name for name, _, _ in variables()]
    assert len(names) == len(set(names))
    assert "FRAMEPOOL_DRIVER_SHM_BASE_DIR" in names


@pytest.mark.parametrize("free", [64 * 2**20, 256 * 2**20, GIB, 16 * GIB, 1024 * GIB])
def test_default_profile_fits_twice_in_a_tenth_of_the_free_memory(free: int) -> None:
    profile = default_profile(free)
    assert 2 * profile.epoch_bytes <= free // 10
    assert profile.nslots >= 4


def test_default_profile_holds_a_camera_frame_where_there_is_room() -> None:
    assert default_profile(16 * GIB).pools[-1].stride_bytes >= 2048 * 2048 * 2


def test_too_little_memory_says_so() -> None:
    with pytest.raises(ConfigurationError, match="too little"):
        default_profile(10_000)

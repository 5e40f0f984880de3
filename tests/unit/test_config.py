"""Configuration: what it holds with no file, what a file may say, and how it says no."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from framepool.config import Config, default_profile, load, variables
from framepool.errors import ConfigurationError
from framepool.wire.dispatch import MESSAGES

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
        ("[channels]\ncontrol = 'ipc'", r"control: 'ipc' is no Aeron channel.*\$\.channels"),
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


@pytest.mark.clause("W-15.11-01", "W-14-01")
def test_stream_ids_are_those_of_the_plan() -> None:
    ids = Config().stream_ids
    assert 1000 <= ids.control <= 1003
    assert 1000 <= ids.announce <= 1003
    assert (ids.descriptor, ids.qos, ids.metadata) == (1100, 1200, 1300)
    values = [value for value in msgspec.to_builtins(ids).values() if isinstance(value, int)]
    assert len(values) == len(set(values)) == 12


@pytest.mark.clause("W-15.16-01", "W-14-01")
def test_every_channel_of_a_host_is_ipc_unless_configured(tmp_path: Path) -> None:
    channels = msgspec.to_builtins(Config().channels)
    assert set(channels) >= {
        "control",
        "announce",
        "descriptor",
        "qos",
        "metadata",
        "service_control",
        "service_status",
    }
    assert set(channels.values()) == {"aeron:ipc"}
    path = write(tmp_path, "[channels]\nqos = 'aeron:udp?endpoint=127.0.0.1:40123'")
    assert load(path, environ={}).channels.qos == "aeron:udp?endpoint=127.0.0.1:40123"


@pytest.mark.clause("W-15.6-01")
def test_slots_for_rate_and_latency_are_demanded_where_a_profile_states_them(tmp_path: Path) -> None:
    text = "[profiles.x]\nnslots = {}\nrate_hz = 100\nlatency_ms = 50\npools = [{{pool_id = 1, stride_bytes = 64}}]"
    with pytest.raises(ConfigurationError, match="use 16 or more"):
        load(write(tmp_path, text.format(8)), environ={})
    assert load(write(tmp_path, text.format(16)), environ={}).profile("x").nslots == 16
    with pytest.raises(ConfigurationError, match="use 32 or more"):
        load(write(tmp_path, text.format(16) + "\nsafety_factor = 4"), environ={})
    with pytest.raises(ConfigurationError, match="safety_factor"):
        load(write(tmp_path, text.format(16) + "\nsafety_factor = 1.5"), environ={})


@pytest.mark.clause("W-15.21a.2-01")
def test_base_directory_is_an_absolute_path(tmp_path: Path) -> None:
    path = write(tmp_path, f"[driver]\nshm_base_dir = '{tmp_path}'")
    assert load(path, environ={}).driver.shm_base_dir == str(tmp_path)
    with pytest.raises(ConfigurationError, match="not an absolute path"):
        load(write(tmp_path, "[driver]\nshm_base_dir = 'dev/shm'"), environ={})


@pytest.mark.clause("W-10.1.1-03")
def test_realtime_needs_a_statement_of_how_well_it_is_synchronised(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="clock_error_budget_us"):
        load(write(tmp_path, "[driver]\nclock = 'realtime_synced'"), environ={})
    with pytest.raises(ConfigurationError, match="clock"):
        load(write(tmp_path, "[driver]\nclock = 'realtime'"), environ={})


@pytest.mark.clause("D-4.4-07", "D-4.4-09")
def test_keepalives_and_grace_have_the_baseline_of_the_specification() -> None:
    driver = Config().driver
    assert (driver.keepalive_interval_ms, driver.lease_expiry_ms, driver.announce_period_ms) == (1_000, 3_000, 1_000)


@pytest.mark.clause("W-15.7a-02")
def test_no_message_speaks_of_memory_nodes_or_processors() -> None:
    names = {field.name.lower() for message in MESSAGES for field in message.FIELDS}
    assert "streamid" in names
    assert [name for name in names if any(word in name for word in ("numa", "node", "cpu", "affinity"))] == []


@pytest.mark.parametrize("text", ["a = " + "[" * 50_000, "a = " + "{a=" * 50_000], ids=["arrays", "tables"])
def test_file_that_nests_without_end_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "deep.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match="nested too deeply"):
        load(path, {})


def test_variable_of_a_table_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "flat.toml"
    path.write_text("aeron = 3\n")
    with pytest.raises(ConfigurationError, match="'aeron' is no table in the file, but 3"):
        load(path, {"FRAMEPOOL_AERON_DRIVER_TIMEOUT": "3"})

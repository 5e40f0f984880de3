"""What the configuration of discovery refuses, and what it says then."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from framepool.config import Config, load
from framepool.discovery.embedded import own_origin
from framepool.discovery.host import this_host
from framepool.discovery.registry import origin_of
from framepool.errors import ConfigurationError

PAGE = Path(__file__).parents[3] / "docs" / "discovery.md"
SOURCE = """
[[registry.sources]]
driver_instance_id = "{name}"
host = "{name}"
channel = "{channel}"
"""


def read(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "framepool.toml"
    path.write_text(text)
    return load(path, {})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[discovery]\nchannel = 'udp'", r"channel: 'udp' is no Aeron channel.*\$\.discovery"),
        ("[discovery]\nregistries = ['x']", "registries: 'x'"),
        ("[discovery]\nannounce_channels = ['x']", "announce_channels: 'x'"),
        ("[discovery]\nannounce_channels = ['aeron:ipc', 'aeron:ipc']", "twice"),
        ("[discovery]\nhost = 'a b'", r"\$\.discovery"),
        ("[discovery]\ndriver_instance_id = 'Zürich'", r"\$\.discovery"),
        ("[discovery.responses]\nnetworks = ['10.0.0.1/8']", "networks: 10.0.0.1/8 has host bits set"),
        ("[discovery.responses]\nterm_length = 100_000", "power of two"),
        ("[discovery.responses]\nmax_term_length = 1", "power of two"),
        ("[discovery.responses]\nmedia = ['tcp']", "tcp"),
        ("[discovery.limits]\nmax_results = 0", "max_results"),
        ("[[discovery.access]]\nstreams = [[2, 1]]", "backwards"),
        ("[[discovery.access]]\nclients = [-1]", "clients"),
        (SOURCE.format(name="a", channel="x"), "channel: 'x'"),
        (SOURCE.format(name="a", channel="aeron:ipc") + "control_channel = ''", "control_channel"),
        (SOURCE.format(name="a", channel="aeron:ipc") + "control_stream_id = 0", "control_stream_id"),
        (
            SOURCE.format(name="a", channel="aeron:ipc") + SOURCE.format(name="a", channel="aeron:ipc?session-id=2"),
            "'a' is configured twice",
        ),
        (
            SOURCE.format(name="a", channel="aeron:ipc") + SOURCE.format(name="b", channel="aeron:ipc?alias=b"),
            "'a' and 'b' have one channel and stream.*session-id",
        ),
    ],
)
def test_mistake_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        read(tmp_path, text)


@pytest.mark.parametrize(
    "second",
    [
        SOURCE.format(name="b", channel="aeron:udp?endpoint=127.0.0.1:2"),
        SOURCE.format(name="b", channel="aeron:udp?endpoint=127.0.0.1:1|session-id=2"),
        SOURCE.format(name="b", channel="aeron:udp?endpoint=127.0.0.1:1")
        + "announce_stream_id = 5\nmetadata_stream_id = 6",
    ],
    ids=["port", "session", "stream ids"],
)
def test_drivers_of_a_registry_differ_by_port_session_or_stream(tmp_path: Path, second: str) -> None:
    first = SOURCE.format(name="a", channel="aeron:udp?endpoint=127.0.0.1:1")
    assert len(read(tmp_path, first + second).registry.sources) == 2


@pytest.mark.parametrize("shared", ["announce_stream_id = 5", "metadata_stream_id = 5"])
def test_drivers_that_share_one_of_their_streams_are_refused(tmp_path: Path, shared: str) -> None:
    first, second = (SOURCE.format(name=name, channel="aeron:ipc") for name in "ab")
    with pytest.raises(ConfigurationError, match="one channel and stream"):
        read(tmp_path, first + second + shared)


def test_driver_is_named_by_host_and_namespace_unless_the_file_names_it(tmp_path: Path) -> None:
    unnamed = own_origin(read(tmp_path, "[driver]\nnamespace = 'lab'"))
    assert unnamed.instance_id.endswith("/lab")
    assert unnamed.host == this_host()
    assert (unnamed.control_channel, unnamed.control_stream_id) == ("aeron:ipc", 1000)
    named = own_origin(
        read(
            tmp_path,
            "[discovery]\nhost = 'rig'\ndriver_instance_id = 'rig/lab'\n[driver]\nannounce_period_ms = 200\n"
            "[channels]\ncontrol = 'aeron:ipc?alias=x'\n[stream_ids]\ncontrol = 999",
        )
    )
    assert (named.instance_id, named.host, named.window_ns) == ("rig/lab", "rig", 600_000_000)
    assert (named.control_channel, named.control_stream_id) == ("aeron:ipc?alias=x", 999)


def test_driver_of_a_registry_is_what_the_file_says(tmp_path: Path) -> None:
    text = SOURCE.format(name="rig", channel="aeron:ipc") + "control_stream_id = 7\nannounce_period_ms = 500"
    (source,) = read(tmp_path, text).registry.sources
    origin = origin_of(source)
    assert (origin.instance_id, origin.host, origin.window_ns) == ("rig", "rig", 1_500_000_000)
    assert (origin.control_channel, origin.control_stream_id) == ("aeron:ipc", 7)


def test_examples_of_the_page_are_valid(tmp_path: Path) -> None:
    examples = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    configs = [read(tmp_path, example) for example in examples]
    assert len(configs) == 4
    registry = next(config for config in configs if config.registry.sources)
    driver = next(config for config in configs if config.discovery.announce_channels)
    source = registry.registry.sources[0]
    assert source.driver_instance_id == driver.discovery.driver_instance_id
    assert source.host == driver.discovery.host
    assert registry.discovery.channel in driver.discovery.registries


@pytest.mark.clause("N-4.2-01")
def test_request_stream_is_that_of_the_plan_unless_discovery_names_one(tmp_path: Path) -> None:
    assert read(tmp_path, "").discovery_stream_id == 7_000
    assert read(tmp_path, "[stream_ids]\ndiscovery_request = 7_001").discovery_stream_id == 7_001
    assert read(tmp_path, "[discovery]\nstream_id = 1000").discovery_stream_id == 1_000

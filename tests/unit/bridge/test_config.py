"""The configuration of a bridge: what it needs, what follows from it, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from framepool.config import BridgeConfig, Config, LinkConfig, load
from framepool.errors import ConfigurationError

HERE, THERE = "aeron:udp?endpoint=10.0.0.1:40123", "aeron:udp?endpoint=10.0.0.2:40123"
GROUP = "aeron:udp?endpoint=224.20.30.39:40456|interface=10.0.0.1"

MINIMAL: dict[str, Any] = {
    "bridge": {
        "instance_id": "lab-a",
        "payload_channel": THERE,
        "payload_stream_id": 3000,
        "control_channel": "aeron:udp?endpoint=10.0.0.2:40124",
        "control_stream_id": 3001,
    },
    "mappings": [{"source_stream_id": 10_000, "dest_stream_id": 50_000, "profile": "default"}],
}
BACK: dict[str, Any] = {
    "payload_channel": HERE,
    "payload_stream_id": 3010,
    "control_channel": "aeron:udp?endpoint=10.0.0.1:40124",
    "control_stream_id": 3011,
}


def made(
    *, mappings: list[dict[str, Any]] | None = None, config: dict[str, Any] | None = None, **bridge: Any
) -> Config:
    """The minimal file with these changes; what is None goes."""
    section = {key: value for key, value in {**MINIMAL["bridge"], **bridge}.items() if value is not None}
    table = {**MINIMAL, "bridge": section, **(config or {})}
    if mappings is not None:
        table["mappings"] = mappings
    return msgspec.convert(table, Config)


def bridge_of(config: Config) -> BridgeConfig:
    assert config.bridge is not None
    return config.bridge


def mapping(source: int, dest: int, **more: Any) -> dict[str, Any]:
    return {"source_stream_id": source, "dest_stream_id": dest, **more}


@pytest.mark.clause("B-10-01")
def test_bridge_is_configured_by_a_file_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "bridge.toml"
    path.write_text(
        """
        [bridge]
        instance_id = "lab-a"
        payload_channel = "aeron:udp?endpoint=10.0.0.2:40123"
        payload_stream_id = 3000
        control_channel = "aeron:udp?endpoint=10.0.0.2:40124"
        control_stream_id = 3001
        [[mappings]]
        source_stream_id = 10_000
        dest_stream_id = 50_000
        profile = "default"
        """
    )
    config = load(path, environ={})
    assert bridge_of(config).instance_id == "lab-a"
    assert config.streams == ()


@pytest.mark.clause("B-10-03")
@pytest.mark.parametrize("key", sorted(MINIMAL["bridge"]))
def test_required_key_that_is_missing_is_named(key: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=key):
        made(**{key: None})


@pytest.mark.clause("B-10-03")
def test_bridge_without_mappings_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="mappings"):
        made(mappings=[])


@pytest.mark.clause("B-10-08", "B-10-06", "B-10-07", "B-5.3a-02", "B-5.3a-04")
def test_defaults_are_those_of_the_specification() -> None:
    bridge = bridge_of(made())
    assert bridge.forward_metadata is not False
    assert bridge.metadata_channel == ""
    assert (bridge.forward_qos, bridge.forward_progress) == (False, False)
    assert (bridge.max_chunk_bytes, bridge.max_payload_bytes) == (65_535, 1_073_741_824)
    assert bridge.destinations is None
    assert bridge.assembly_timeout_ms == 250


@pytest.mark.clause("B-10-10")
def test_mapping_has_the_defaults_of_the_specification() -> None:
    (plain,) = made(mappings=[mapping(10_000, 50_000)]).mappings
    assert (plain.source_stream_id, plain.dest_stream_id, plain.profile) == (10_000, 50_000, "default")
    assert (plain.source_control_stream_id, plain.dest_control_stream_id) == (0, 0)
    assert plain.metadata_about(50_000) == 50_000
    full = mapping(
        10_000,
        50_000,
        profile="camera",
        metadata_stream_id=50_100,
        source_control_stream_id=1000,
        dest_control_stream_id=1005,
    )
    (named,) = made(mappings=[full]).mappings
    assert (named.profile, named.metadata_about(50_000)) == ("camera", 50_100)
    assert (named.source_control_stream_id, named.dest_control_stream_id) == (1000, 1005)


@pytest.mark.clause("B-10-02")
def test_keys_beyond_the_specification_are_known_and_others_are_not() -> None:
    assert bridge_of(made(reserved_ranges=[[51_000, 51_999]])).reserved_ranges == ((51_000, 51_999),)
    with pytest.raises(msgspec.ValidationError, match="chunk_size"):
        made(chunk_size=1000)


@pytest.mark.clause("B-10-05", "B-5.2-15")
@pytest.mark.parametrize(("chunk_bytes", "effective"), [(1000, 1000), (4000, 1280), (None, 1280)])
def test_chunk_is_the_smaller_of_what_is_set_and_what_the_mtu_leaves(chunk_bytes: int | None, effective: int) -> None:
    bridge = bridge_of(made(mtu_bytes=1408, chunk_bytes=chunk_bytes))
    assert bridge.chunk_size(bridge.mtu) == effective


@pytest.mark.clause("B-10-06")
def test_chunk_is_never_longer_than_the_hard_cap() -> None:
    bridge = bridge_of(made(mtu_bytes=8192, max_chunk_bytes=512))
    assert bridge.chunk_size(bridge.mtu) == 512


@pytest.mark.clause("B-10-04")
@pytest.mark.parametrize(("channel", "mtu"), [(THERE, 1408), (f"{THERE}|mtu=8k", 8192), (f"{THERE}|mtu=2048", 2048)])
def test_mtu_is_that_of_the_channel_unless_it_is_set(channel: str, mtu: int) -> None:
    assert bridge_of(made(payload_channel=channel)).mtu == mtu
    assert bridge_of(made(payload_channel=channel, mtu_bytes=1024)).mtu == 1024


@pytest.mark.parametrize(
    ("mtu", "channel"), [(500, THERE), (1500, THERE), (65_536, THERE), (2048, f"{THERE}|mtu=1024")]
)
def test_mtu_that_cannot_work_is_refused(mtu: int, channel: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"(?i)mtu"):
        made(payload_channel=channel, mtu_bytes=mtu)


@pytest.mark.parametrize(
    ("key", "channel"),
    [
        ("payload_channel", "aeron:ipc"),
        ("payload_channel", "udp://10.0.0.2"),
        ("payload_channel", "aeron:udp?ttl=3"),
        ("control_channel", "10.0.0.2:40124"),
        ("metadata_channel", "aeron:ipc"),
    ],
)
def test_channel_that_leads_nowhere_is_refused(key: str, channel: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=key):
        made(**{key: channel})


@pytest.mark.clause("B-3-01")
@pytest.mark.parametrize("channel", [GROUP, "aeron:udp?control=10.0.0.1:40456|control-mode=dynamic"])
def test_channels_to_many_receivers_are_accepted(channel: str) -> None:
    assert bridge_of(made(payload_channel=channel)).payload_channel == channel


@pytest.mark.clause("B-7.1-07")
def test_metadata_that_is_asked_for_without_a_channel_is_refused_at_once() -> None:
    with pytest.raises(msgspec.ValidationError, match="metadata_channel"):
        made(forward_metadata=True)
    with pytest.raises(msgspec.ValidationError, match="'back' has no metadata_channel"):
        made(
            forward_metadata=True,
            metadata_channel="aeron:udp?endpoint=10.0.0.2:40125",
            links={"back": BACK},
            mappings=[mapping(10_000, 50_000, link="back")],
        )


@pytest.mark.clause("B-7.1-06", "B-10-08")
def test_metadata_that_is_left_open_is_off_without_a_channel_and_on_with_one() -> None:
    without = bridge_of(made())
    assert not without.forwards_metadata(without.link())
    with_one = bridge_of(made(metadata_channel="aeron:udp?endpoint=10.0.0.2:40125"))
    assert with_one.forwards_metadata(with_one.link())
    off = bridge_of(made(metadata_channel="aeron:udp?endpoint=10.0.0.2:40125", forward_metadata=False))
    assert not off.forwards_metadata(off.link())


@pytest.mark.clause("B-7.2-04")
def test_metadata_does_not_share_the_channel_of_control_messages() -> None:
    with pytest.raises(msgspec.ValidationError, match="metadata_channel is control_channel"):
        made(metadata_channel=MINIMAL["bridge"]["control_channel"], metadata_stream_id=3002)


@pytest.mark.clause("B-9-12", "B-9-14")
@pytest.mark.parametrize("given", [{}, {"source_control_stream_id": 1000}, {"dest_control_stream_id": 1000}])
def test_progress_without_both_control_streams_is_refused_at_once(given: dict[str, int]) -> None:
    with pytest.raises(msgspec.ValidationError, match="10000: forward_progress needs"):
        made(forward_progress=True, mappings=[mapping(10_000, 50_000, **given)])


def test_progress_with_both_control_streams_is_accepted() -> None:
    both = mapping(10_000, 50_000, source_control_stream_id=1000, dest_control_stream_id=1000)
    assert bridge_of(made(forward_progress=True, mappings=[both])).forward_progress


# Stream ids


@pytest.mark.clause("B-4-01")
def test_payload_stream_of_the_plan_is_accepted_and_one_of_the_host_is_refused() -> None:
    assert bridge_of(made()).payload_stream_id == Config().stream_ids.bridge_payload
    for taken in (1000, 1100, 1300, 7000, 10_500, 31_000):
        with pytest.raises(msgspec.ValidationError, match=f"payload_stream_id {taken} is of stream_ids"):
            made(payload_stream_id=taken)


@pytest.mark.clause("B-4-05")
def test_destination_that_is_left_open_needs_a_range() -> None:
    with pytest.raises(msgspec.ValidationError, match="no dest_stream_id_range"):
        made(role="receiver", mappings=[{"source_stream_id": 10_000}])
    for given in ([50_000, 50_010], "50000-50010"):
        bridge = bridge_of(made(role="receiver", dest_stream_id_range=given, mappings=[{"source_stream_id": 10_000}]))
        assert bridge.destinations == (50_000, 50_010)


@pytest.mark.parametrize("given", ["50000", "a-b", [50_000], [50_010, 50_000]])
def test_range_that_is_none_is_refused(given: object) -> None:
    with pytest.raises(msgspec.ValidationError, match="dest_stream_id_range"):
        made(dest_stream_id_range=given)


@pytest.mark.clause("B-4-06")
@pytest.mark.parametrize(
    ("ids", "with_what", "more"),
    [
        ("999-1005", "control", {}),
        ("1001-1001", "announce", {}),
        ("1150-1250", "qos", {}),
        ("1290-1300", "metadata", {}),
        ("10999-11005", "pools", {}),
        ("31500-31600", "consumer_descriptor", {}),
        ("50000-50010", "the mapping of 10001", {"mappings": [mapping(10_000, 0), mapping(10_001, 50_005)]}),
        ("50000-50010", "the mapping of 10000", {"mappings": [mapping(10_000, 0, metadata_stream_id=50_010)]}),
        ("50000-50010", "the mapping of 10000", {"mappings": [mapping(10_000, 0, dest_control_stream_id=50_000)]}),
        ("50000-50010", "reserved_ranges", {"reserved_ranges": [[50_010, 50_020]]}),
        ("50000-50010", "a configured stream", {"config": {"streams": [{"stream_id": 50_003}]}}),
    ],
)
def test_range_that_overlaps_ids_of_others_is_refused(ids: str, with_what: str, more: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError, match=f"overlaps.*{with_what}"):
        made(role="receiver", dest_stream_id_range=ids, **more)


@pytest.mark.parametrize("dest", [1000, 1100, 1200, 1300, 1400, 31_500])
def test_destination_that_is_no_tensor_stream_is_refused(dest: int) -> None:
    with pytest.raises(msgspec.ValidationError, match=f"dest_stream_id {dest} is of stream_ids"):
        made(mappings=[mapping(10_000, dest)])


def test_range_with_too_few_ids_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="too few ids"):
        made(role="receiver", dest_stream_id_range="50000-50000", mappings=[mapping(10_000, 0), mapping(10_001, 0)])


# Many mappings


def both_ways(out: dict[str, Any], back: dict[str, Any], link: dict[str, Any] | None = None) -> Config:
    """One mapping to the other host and one from there."""
    return made(
        links={"back": link or BACK},
        mappings=[{**out, "role": "sender"}, {**back, "role": "receiver", "link": "back"}],
    )


@pytest.mark.clause("B-2.3-01")
def test_one_instance_may_map_in_both_directions() -> None:
    config = both_ways(mapping(10_000, 50_000), mapping(10_001, 50_001))
    assert [each.role for each in config.mappings] == ["sender", "receiver"]


@pytest.mark.clause("B-2.3-02")
@pytest.mark.parametrize(
    ("out", "back", "complaint"),
    [
        (mapping(10_000, 50_000), mapping(10_000, 50_001), "10000 is the source of a mapping in either direction"),
        (mapping(10_000, 50_000), mapping(10_001, 50_000), "50000 is the destination of a mapping in either direction"),
    ],
)
def test_equal_ids_in_both_directions_are_refused(out: dict[str, Any], back: dict[str, Any], complaint: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=complaint):
        both_ways(out, back)


@pytest.mark.clause("B-2.3-03")
def test_stream_that_would_come_back_to_its_origin_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="back to where it came from"):
        both_ways(mapping(10_000, 50_000), mapping(50_000, 10_000))


@pytest.mark.clause("B-2.3-03")
def test_stream_that_would_come_back_on_a_detour_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="back to where it came from"):
        made(
            links={"back": BACK},
            mappings=[
                mapping(10_000, 50_000),
                mapping(50_000, 50_001, role="receiver", link="back"),
                mapping(50_001, 50_002),
                mapping(50_002, 10_000, role="receiver", link="back"),
            ],
        )


def test_hop_of_a_chain_is_no_loop() -> None:
    config = both_ways(mapping(50_000, 50_001), mapping(10_000, 50_000))
    assert len(config.mappings) == 2


@pytest.mark.clause("B-2.3-04")
@pytest.mark.parametrize("kind", ["payload", "control", "metadata"])
def test_directions_that_share_a_channel_need_other_stream_ids(kind: str) -> None:
    shared = {
        "payload_channel": GROUP,
        "payload_stream_id": 3000,
        "control_channel": "aeron:udp?endpoint=224.20.30.41:40456",
        "control_stream_id": 3001,
        "metadata_channel": "aeron:udp?endpoint=224.20.30.43:40456",
        "metadata_stream_id": 3002,
    }
    apart = {**shared, "payload_stream_id": 3010, "control_stream_id": 3011, "metadata_stream_id": 3012}
    two_ways = [mapping(10_000, 50_000), mapping(10_001, 50_001, role="receiver", link="back")]
    assert made(**shared, links={"back": apart}, mappings=two_ways)
    clash = {**apart, f"{kind}_stream_id": shared[f"{kind}_stream_id"]}
    with pytest.raises(msgspec.ValidationError, match=f"{kind} and {kind} of the two directions share stream"):
        made(**shared, links={"back": clash}, mappings=two_ways)


@pytest.mark.clause("B-2.3-04")
def test_one_link_does_not_serve_both_directions() -> None:
    with pytest.raises(msgspec.ValidationError, match="of the two directions share stream 3000"):
        made(mappings=[mapping(10_000, 50_000), mapping(10_001, 50_001, role="receiver")])


@pytest.mark.parametrize(
    ("mappings", "complaint"),
    [
        ([mapping(10_000, 50_000), mapping(10_000, 50_001)], "10000 is mapped twice on one link"),
        ([mapping(10_000, 50_000), mapping(10_001, 50_000)], "50000 is the destination of two mappings"),
        (
            [mapping(10_000, 50_000, metadata_stream_id=9), mapping(10_001, 50_001, metadata_stream_id=9)],
            "about stream 9",
        ),
        ([mapping(10_000, 50_000, link="nowhere")], "no link 'nowhere'"),
        ([mapping(10_000, 50_000, role="sender", driverless=True)], "driverless is for receivers"),
        ([mapping(10_000, 50_000, profile="wide", driverless=True)], "no profile 'wide'"),
    ],
)
def test_mappings_that_contradict_each_other_are_refused(mappings: list[dict[str, Any]], complaint: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=complaint):
        made(role="receiver", mappings=mappings)


def test_one_stream_may_go_to_several_hosts() -> None:
    assert made(links={"back": BACK}, mappings=[mapping(10_000, 50_000), mapping(10_000, 50_000, link="back")])


def test_mappings_without_a_bridge_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="mappings need a"):
        msgspec.convert({"mappings": MINIMAL["mappings"]}, Config)


@pytest.mark.parametrize("key", ["control_stream_id", "metadata_stream_id"])
def test_streams_of_one_link_are_told_apart(key: str) -> None:
    whole = {**MINIMAL["bridge"], "metadata_channel": THERE, "control_channel": "aeron:udp?endpoint=10.0.0.2:40124"}
    if key == "control_stream_id":
        whole["control_channel"], whole["metadata_channel"] = THERE, ""
    del whole["instance_id"]
    with pytest.raises(msgspec.ValidationError, match="share stream 3000"):
        msgspec.convert({**whole, key: 3000}, LinkConfig)


def test_mistake_is_told_with_the_name_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "bridge.toml"
    path.write_text("[bridge]\ninstance_id = 'a b'\n")
    with pytest.raises(ConfigurationError, match=r"bridge.toml: .*\$\.bridge"):
        load(path, environ={})

"""What happens to messages on their way over the bridge: ids are rewritten, tags added, and nothing else changes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framepool.bridge import forward
from framepool.wire._generated.control_900 import (
    Attribute,
    DataSourceAnnounce,
    DataSourceMeta,
    FrameProgress,
    FrameProgressState,
    MetaBlobChunk,
    Mode,
    QosConsumer,
    QosProducer,
)
from framepool.wire._generated.trace_904 import TraceLinkSet
from framepool.wire.attributes import attribute_of

SOURCE, DEST = 10_000, 50_000
tags = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=","), min_size=1, max_size=20)


def meta(*attributes: Attribute) -> DataSourceMeta:
    return DataSourceMeta(stream_id=SOURCE, meta_version=7, timestamp_ns=5, attributes=attributes)


def test_sender_names_host_and_stream_of_the_origin() -> None:
    sent = forward.departing(meta(attribute_of("gain", 4)), "lab-a")
    assert isinstance(sent, DataSourceMeta)
    assert forward.tags_of(sent) == ("origin-host:lab-a", f"origin-stream:{SOURCE}")
    assert (sent.stream_id, sent.meta_version, sent.timestamp_ns) == (SOURCE, 7, 5)
    assert sent.attributes[0] == attribute_of("gain", 4)


def test_origin_of_a_stream_that_came_over_a_bridge_already_stays() -> None:
    arrived = forward.arriving(forward.departing(meta(), "lab-a"), DEST, "one")
    onward = forward.arriving(forward.departing(arrived, "lab-b"), 50_001, "two")
    assert isinstance(onward, DataSourceMeta)
    assert forward.tags_of(onward) == ("origin-host:lab-a", f"origin-stream:{SOURCE}", "bridged:one", "bridged:two")


@given(st.lists(tags, max_size=5), st.lists(tags, max_size=3))
def test_tags_are_added_once_and_behind_those_that_were_there(known: list[str], added: list[str]) -> None:
    both = forward.with_tags(meta(attribute_of("tags", known), attribute_of("gain", 4)), added)
    assert forward.tags_of(both) == tuple(dict.fromkeys((*known, *added)))
    assert [each.key for each in both.attributes] == ["gain", "tags"]


@pytest.mark.parametrize("given", ["cold, left", ["cold", "left"]])
def test_tags_of_either_form_are_kept(given: object) -> None:
    assert forward.tags_of(forward.with_tags(meta(attribute_of("tags", given)), ["x"])) == ("cold", "left", "x")


def test_tags_that_cannot_be_read_do_not_keep_ours_away() -> None:
    broken = Attribute(key="tags", format="application/json", value=b"{")
    assert forward.tags_of(forward.with_tags(meta(broken), ["x"])) == ("x",)


@pytest.mark.clause("B-7.1-04", "B-7.1-05")
@pytest.mark.parametrize(
    "message",
    [
        DataSourceAnnounce(stream_id=SOURCE, producer_id=3, epoch=9, meta_version=7, name="camera", summary="u16"),
        MetaBlobChunk(stream_id=SOURCE, meta_version=7, chunk_offset=64, bytes_=b"abc"),
    ],
)
def test_of_metadata_only_the_stream_changes(message: forward.Told) -> None:
    assert forward.departing(message, "lab-a") == message
    arrived = forward.arriving(message, DEST, "one")
    assert arrived == msgspec.structs.replace(message, stream_id=DEST)


@pytest.mark.clause("B-9-06", "B-9-07")
def test_of_progress_only_the_stream_changes() -> None:
    said = FrameProgress(stream_id=SOURCE, epoch=9, seq=4, payload_bytes_filled=64, state=FrameProgressState.PROGRESS)
    assert forward.arriving_progress(said, DEST) == msgspec.structs.replace(said, stream_id=DEST)


def test_of_reports_only_the_stream_changes() -> None:
    produced = QosProducer(stream_id=SOURCE, producer_id=1, epoch=9, current_seq=4, watermark=None)
    consumed = QosConsumer(
        stream_id=SOURCE, consumer_id=1, epoch=9, last_seq_seen=4, drops_gap=1, drops_late=2, mode=Mode.STREAM
    )
    for report in (produced, consumed):
        assert forward.arriving_report(report, DEST) == msgspec.structs.replace(report, stream_id=DEST)


def test_trace_links_are_about_the_frame_as_it_is_here() -> None:
    said = TraceLinkSet(stream_id=SOURCE, epoch=9, seq=4, trace_id=77)
    assert forward.arriving_links(said, DEST, 3) == TraceLinkSet(stream_id=DEST, epoch=3, seq=4, trace_id=77)

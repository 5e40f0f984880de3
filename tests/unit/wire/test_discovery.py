"""Discovery messages by halves: the same bytes as whole ones, and what is salvaged of broken ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framepool.wire._generated.discovery_910 import (
    DiscoveryRequest,
    DiscoveryResponse,
    DiscoveryStatus,
    PayloadPool,
    Result,
    Tag,
)
from framepool.wire.discovery import RESPONSE_OVERHEAD, encode_found, salvage_request
from framepool.wire.schema import read_schema

SCHEMA = Path(__file__).parents[3] / "schemas" / "discovery-910.xml"
TEXT = st.text(st.characters(codec="ascii"), max_size=20)
RESULTS = st.builds(
    Result,
    stream_id=st.integers(0, 2**32 - 1),
    producer_id=st.integers(0, 2**32 - 1),
    epoch=st.integers(0, 2**64 - 1),
    layout_version=st.just(1),
    header_nslots=st.just(4),
    header_slot_bytes=st.just(256),
    max_dims=st.just(8),
    data_source_id=st.none() | st.integers(0, 2**64 - 2),
    driver_control_stream_id=st.just(1000),
    payload_pools=st.lists(
        st.builds(PayloadPool, pool_id=st.just(1), pool_nslots=st.just(4), stride_bytes=st.just(64), region_uri=TEXT),
        max_size=3,
    ).map(tuple),
    tags=st.lists(st.builds(Tag, tag=TEXT), max_size=3).map(tuple),
    header_region_uri=TEXT,
    data_source_name=TEXT,
    driver_instance_id=TEXT,
    driver_control_channel=TEXT,
)


def request(**changes: object) -> DiscoveryRequest:
    fields = {"request_id": 7, "client_id": 8, "response_stream_id": 9, "response_channel": "aeron:ipc"}
    return DiscoveryRequest(**{**fields, "tags": (Tag(tag="a"),), "data_source_name": "camera", **changes})  # type: ignore[arg-type]


@given(st.integers(0, 2**64 - 1), st.lists(RESULTS, max_size=4))
def test_response_of_encoded_results_is_the_response_of_the_results(request_id: int, results: list[Result]) -> None:
    whole = DiscoveryResponse(request_id=request_id, status=DiscoveryStatus.OK, results=tuple(results)).encode()
    parts = [result.encode_body() for result in results]
    assert encode_found(request_id, parts) == whole
    assert len(whole) == RESPONSE_OVERHEAD + sum(map(len, parts))


def test_endpoint_of_a_request_that_ends_wrong_is_salvaged() -> None:
    found = salvage_request(request().encode() + b"x")
    assert found is not None
    assert found[:4] == (7, 8, 9, "aeron:ipc")
    assert "1 bytes follow the end of DiscoveryRequest" in found.reason


def test_request_that_is_well_formed_needs_no_salvage() -> None:
    assert salvage_request(request().encode()) is None


@pytest.mark.parametrize("position", [2, 4, 6])
def test_request_of_another_header_is_not_salvaged(position: int) -> None:
    """Another template, schema or version says nothing of where its fields are."""
    data = bytearray(request().encode() + b"x")
    data[position] ^= 0xFF
    assert salvage_request(bytes(data)) is None


@given(st.binary(max_size=80) | st.integers(0, 60).map(lambda cut: request().encode()[:cut]))
def test_any_bytes_are_salvaged_or_not_and_never_raise(data: bytes) -> None:
    salvage_request(data)
    salvage_request(request().encode()[:8] + data)


@pytest.mark.clause("N-10-04")
def test_schema_has_its_version_as_a_constant() -> None:
    schema = read_schema(SCHEMA)
    text = SCHEMA.read_text()
    (constant,) = re.findall(r'<type name="discovery_schema_version"[^>]*presence="constant"[^>]*>(\d+)</type>', text)
    assert int(constant) == schema.version == DiscoveryRequest.SCHEMA_VERSION

"""The driver's protocol, message by message, of a driver in this process and of one in its own (Driver 2.1, 4 to 8)."""

from __future__ import annotations

import itertools
import os
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framepool.shm.layout import StreamLayout
from framepool.shm.tree import effective_user
from framepool.wire._generated.control_900 import RegionType, ShmPoolAnnounce, ShmRegionSuperblock
from framepool.wire._generated.driver_901 import (
    Bool,
    LeaseRevokeReason,
    PublishMode,
    ResponseCode,
    Role,
    ShmAttachRequest,
    ShmAttachResponse,
    ShmDetachResponse,
    ShmLeaseRevoked,
)
from framepool.wire.constants import SUPERBLOCK_MAGIC, SUPERBLOCK_SIZE
from tests.support.directories import private_directory
from tests.support.driver_client import DriverClient, Held, new_client_id
from tests.support.drivers import KINDS, NSLOTS, STRIDES, Kind, RunningDriver, running_driver, table

STREAM, READ_ONLY, WRITE_ONLY, UNEVEN, DYNAMIC = 10_000, 10_001, 10_002, 10_003, 20_000
_fresh = itertools.count(DYNAMIC + 100)
BLOCK = 8  # where the fields of a message begin
PUBLISH_MODE = BLOCK + 22
ROLE = BLOCK + 16


def configuration(base_dir: Path, **driver: Any) -> dict[str, Any]:
    values = table(base_dir, **driver)
    values["profiles"]["uneven"] = {
        "nslots": NSLOTS,
        "pools": [{"pool_id": 1, "stride_bytes": 64}, {"pool_id": 2, "stride_bytes": 64, "nslots": 2 * NSLOTS}],
    }
    values["streams"] = [
        {"stream_id": STREAM},
        {"stream_id": READ_ONLY, "roles": ["consumer"]},
        {"stream_id": WRITE_ONLY, "roles": ["producer"]},
        {"stream_id": UNEVEN, "profile": "uneven"},
    ]
    return values


@pytest.fixture(scope="module", params=KINDS)
def driver(request: pytest.FixtureRequest) -> Iterator[RunningDriver]:
    """A driver whose leases outlive any test; each test gives back what it held."""
    with private_directory() as base, running_driver(request.param, base, configuration(base)) as running:
        yield running


@pytest.fixture
def client(driver: RunningDriver) -> Iterator[DriverClient]:
    with DriverClient(driver.config) as client:
        yield client


@pytest.fixture(scope="module", params=KINDS)
def strict_driver(request: pytest.FixtureRequest) -> Iterator[RunningDriver]:
    """A driver whose leases end after 400 ms of silence, and whose announces are a minute apart."""
    with private_directory() as base:
        values = configuration(base, lease_expiry_ms=400, announce_period_ms=60_000)
        with running_driver(request.param, base, values) as running:
            yield running


@pytest.fixture
def strict_client(strict_driver: RunningDriver) -> Iterator[DriverClient]:
    with DriverClient(strict_driver.config) as client:
        yield client


@pytest.fixture
def fresh() -> int:
    """A stream that does not exist yet."""
    return next(_fresh)


def superblock(uri: str) -> ShmRegionSuperblock:
    with open(uri.removeprefix("shm:file?path="), "rb") as file:
        return ShmRegionSuperblock.decode_body(file.read(SUPERBLOCK_SIZE))


def namespace(driver: RunningDriver) -> Path:
    settings = driver.config.driver
    return Path(settings.shm_base_dir) / f"tensorpool-{effective_user()}" / settings.namespace


def outcome(message: object) -> tuple[object, ...]:
    """What a message says apart from the numbers that differ from driver to driver."""
    match message:
        case ShmAttachResponse(code=code, payload_pools=pools, header_nslots=nslots, max_dims=max_dims):
            strides = [(pool.pool_id, pool.pool_nslots, pool.stride_bytes) for pool in pools]
            return "attach", code, nslots, max_dims, strides, bool(message.error_message)
        case ShmDetachResponse(code=code):
            return "detach", code
        case ShmLeaseRevoked(role=role, reason=reason):
            return "revoked", role, reason
    raise AssertionError(message)


def protocol_run(client: DriverClient) -> list[tuple[object, ...]]:
    """Attach, keepalive, detach, refusal: what is answered, in order."""
    said: list[object] = []
    producer = client.hold(DYNAMIC, Role.PRODUCER)
    consumer = client.hold(DYNAMIC)
    said += [producer.answer, consumer.answer]
    producer.keepalive()
    consumer.keepalive()
    said.append(client.attach(DYNAMIC, Role.PRODUCER))
    said.append(client.attach(DYNAMIC + 1, publish_mode=PublishMode.REQUIRE_EXISTING))
    said.append(client.attach(DYNAMIC, max_dims=9))
    said.append(consumer.detach(role=Role.PRODUCER))
    for lease in (consumer, producer):
        said += [lease.detach(), client.revoked(lease.lease_id), lease.detach()]
    return [outcome(message) for message in said]


@pytest.mark.clause("D-2.1-01")
def test_embedded_and_external_driver_answer_alike(base_dir: Path) -> None:
    outcomes = {}
    for kind in KINDS:
        with running_driver(kind, base_dir, table(base_dir)) as driver, DriverClient(driver.config) as client:
            outcomes[kind] = protocol_run(client)
    assert outcomes["embedded"] == outcomes["external"]
    codes = [said[1] for said in outcomes["embedded"] if said[0] == "attach"]
    assert codes == [ResponseCode.OK] * 2 + [ResponseCode.REJECTED] * 2 + [ResponseCode.INVALID_PARAMS]


# Attach


@pytest.mark.clause("D-4.2-02")
def test_each_request_gets_one_answer_under_its_correlation_id(client: DriverClient) -> None:
    ids = [0, -1, 7, -(2**63), 2**63 - 1, 12_345_678_901]
    for correlation_id in ids:
        client.send(client.request(STREAM, correlation_id=correlation_id))
    client.attach(STREAM, correlation_id=424_242)  # answered last: the driver keeps the order
    expected = [*ids, 424_242]
    answered = [answer.correlation_id for answer in client.of(ShmAttachResponse)]
    assert [each for each in answered if each in expected] == expected


@pytest.mark.clause("D-4.2-03", "D-4.2-07", "D-4.2-08", "D-4.2-09", "D-4.3-02", "D-4.3-08", "D-3-01", "D-3-03")
@pytest.mark.parametrize("role", Role)
def test_granted_attach_names_every_region_and_they_are_there(
    driver: RunningDriver, client: DriverClient, fresh: int, role: Role
) -> None:
    answer = client.attach(fresh, role)
    layout = StreamLayout.from_announce(answer)  # type: ignore[arg-type]
    files = {answer.header_region_uri: None, **{pool.region_uri: pool for pool in answer.payload_pools}}
    blocks = {uri: superblock(uri) for uri in files}  # read before anything else is heard of the stream

    assert (answer.code, answer.stream_id, answer.error_message) == (ResponseCode.OK, fresh, "")
    assert answer.lease_id is not None
    assert (answer.header_nslots, answer.header_slot_bytes, answer.max_dims) == (NSLOTS, 256, 8)
    assert {pool.pool_id: pool.stride_bytes for pool in answer.payload_pools} == STRIDES
    assert {pool.pool_nslots for pool in answer.payload_pools} == {answer.header_nslots}
    for uri, pool in files.items():
        block = blocks[uri]
        assert (block.magic, block.pid) == (SUPERBLOCK_MAGIC, driver.pid)
        assert (block.layout_version, block.epoch) == (answer.layout_version, answer.epoch)
        assert (block.stream_id, block.nslots) == (fresh, NSLOTS)
        if pool is None:
            assert (block.region_type, block.pool_id) == (RegionType.HEADER_RING, 0)
        else:
            assert (block.region_type, block.pool_id) == (RegionType.PAYLOAD_POOL, pool.pool_id)
            assert block.stride_bytes == pool.stride_bytes
    sizes = [os.path.getsize(uri.removeprefix("shm:file?path=")) for uri in files]
    assert sizes == [layout.header_file_bytes, *(pool.file_bytes for pool in layout.pools)]


@pytest.mark.clause("D-3-02", "D-14-01", "W-15.21a.3-04")
@pytest.mark.parametrize("kind", KINDS)
def test_paths_are_the_drivers_choice_below_its_base_and_namespace(kind: Kind, base_dir: Path) -> None:
    values = table(base_dir, namespace="lab1")
    with running_driver(kind, base_dir, values) as driver, DriverClient(driver.config) as client:
        answer = client.attach(DYNAMIC, Role.PRODUCER)
    directory = f"{base_dir}/tensorpool-{effective_user()}/lab1/{DYNAMIC}/{answer.epoch}"
    assert answer.header_region_uri == f"shm:file?path={directory}/header.ring"
    assert [pool.region_uri for pool in answer.payload_pools] == [
        f"shm:file?path={directory}/{id}.pool" for id in STRIDES
    ]


@pytest.mark.clause("D-14-02")
@pytest.mark.parametrize("kind", KINDS)
def test_drivers_of_one_host_keep_apart_by_their_namespaces_over_restarts(kind: Kind, base_dir: Path) -> None:
    def prefix(instance: str) -> str:
        values = table(base_dir, namespace=instance)
        values["aeron"]["directory"] = str(base_dir / f"aeron-{instance}")
        with running_driver(kind, base_dir, values) as driver, DriverClient(driver.config) as client:
            (found,) = re.findall(rf"path=(.*)/{DYNAMIC}/", client.attach(DYNAMIC).header_region_uri)
            return str(found)

    first, second = prefix("one"), prefix("two")
    assert os.path.commonpath([first, second]) == os.path.dirname(first) == os.path.dirname(second)
    assert first != second
    assert prefix("one") == first


@pytest.mark.clause("D-14-03")
def test_embedded_and_external_driver_use_the_same_layout_of_directories(base_dir: Path) -> None:
    shapes = []
    for kind in KINDS:
        with running_driver(kind, base_dir, table(base_dir)) as driver, DriverClient(driver.config) as client:
            answer = client.attach(DYNAMIC)
            uris = [answer.header_region_uri, *(pool.region_uri for pool in answer.payload_pools)]
            shapes.append([uri.replace(str(answer.epoch), "EPOCH") for uri in uris])
    assert shapes[0] == shapes[1]


@pytest.mark.clause("D-4.2-04")
def test_missing_stream_is_made_on_demand(driver: RunningDriver, client: DriverClient, fresh: int) -> None:
    assert not (namespace(driver) / str(fresh)).exists()
    held = client.hold(fresh, publish_mode=PublishMode.EXISTING_OR_CREATE)
    assert (namespace(driver) / str(fresh) / str(held.epoch) / "header.ring").is_file()


@pytest.mark.clause("D-4.2-05")
@pytest.mark.parametrize("mode", [PublishMode.REQUIRE_EXISTING, None])
@pytest.mark.parametrize("role", Role)
def test_missing_stream_is_refused_unless_it_may_be_made(
    driver: RunningDriver, client: DriverClient, fresh: int, mode: PublishMode | None, role: Role
) -> None:
    answer = client.attach(fresh, role, publish_mode=mode)
    assert answer.code is ResponseCode.REJECTED
    assert not (namespace(driver) / str(fresh)).exists()
    assert client.attach(STREAM, role, publish_mode=mode).code is ResponseCode.OK


@pytest.mark.clause("D-4.2-06")
@pytest.mark.parametrize(("stream", "role"), [(READ_ONLY, Role.PRODUCER), (WRITE_ONLY, Role.CONSUMER)])
def test_stream_that_is_not_for_the_role_is_refused(client: DriverClient, stream: int, role: Role) -> None:
    answer = client.attach(stream, role, publish_mode=PublishMode.REQUIRE_EXISTING)
    assert answer.code is ResponseCode.REJECTED
    other = Role.CONSUMER if role is Role.PRODUCER else Role.PRODUCER
    assert client.attach(stream, other, publish_mode=PublishMode.REQUIRE_EXISTING).code is ResponseCode.OK


def require_refusal(client: DriverClient, answer: ShmAttachResponse, code: ResponseCode) -> None:
    """A refusal says its code and why, and nothing else."""
    assert answer.code is code
    assert answer.error_message
    assert answer == ShmAttachResponse(
        correlation_id=answer.correlation_id, code=code, error_message=answer.error_message
    ), "fields that only a grant has"


REFUSED = {
    "layout version": ({"expected_layout_version": 2}, ResponseCode.REJECTED),
    "layout version that is a null elsewhere": ({"expected_layout_version": 2**32 - 1}, ResponseCode.REJECTED),
    "dimensions": ({"max_dims": 9}, ResponseCode.INVALID_PARAMS),
    "dimensions that are a null elsewhere": ({"max_dims": 255}, ResponseCode.INVALID_PARAMS),
    "hugepages": ({"require_hugepages": Bool.TRUE}, ResponseCode.REJECTED),
    "no client": ({"client_id": 0}, ResponseCode.INVALID_PARAMS),
    "pools of another length": ({"stream_id": UNEVEN}, ResponseCode.INVALID_PARAMS),
    "outside the ranges": ({"stream_id": 40_000}, ResponseCode.REJECTED),
}


@pytest.mark.clause("D-4.2-10", "D-4.2-11", "D-4.2-13", "D-4.6-03", "D-4.6-04")
@pytest.mark.clause("D-4.3-01", "D-4.3-03", "D-4.3-06", "D-4.3-09")
@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("case", REFUSED)
def test_refusal_says_why_and_grants_nothing(client: DriverClient, case: str, role: Role) -> None:
    changes, code = REFUSED[case]
    fields = {"stream_id": STREAM, "client_id": new_client_id(), **changes}
    epoch = client.announce_of(STREAM).epoch
    before = len(client.of(ShmAttachResponse))
    request = client.request(role=role, **fields)
    client.send(request)
    require_refusal(client, client.answer(request.correlation_id), code)
    assert len(client.of(ShmAttachResponse)) == before + 1
    assert client.announce_of(STREAM).epoch == epoch, "a refusal changes nothing"
    if fields["client_id"]:  # a lease left behind would keep its client from another one
        assert client.attach(STREAM, role, client_id=fields["client_id"]).code is ResponseCode.OK


def patched(request: ShmAttachRequest, offset: int, value: bytes) -> bytes:
    data = bytearray(request.encode())
    data[offset : offset + len(value)] = value
    return bytes(data)


UNREADABLE = {
    "newer schema version": (lambda it: patched(it, 6, struct.pack("<H", 2)), ResponseCode.UNSUPPORTED),
    "longer block of another dialect": (
        lambda it: patched(it, 0, struct.pack("<H", 27)) + bytes(3),
        ResponseCode.UNSUPPORTED,
    ),
    "unknown publish mode": (lambda it: patched(it, PUBLISH_MODE, b"\x03"), ResponseCode.UNSUPPORTED),
    "role 0": (lambda it: patched(it, ROLE, b"\x00"), ResponseCode.INVALID_PARAMS),
    "role 3": (lambda it: patched(it, ROLE, b"\x03"), ResponseCode.INVALID_PARAMS),
    "truncated": (lambda it: it.encode()[:-2], ResponseCode.INVALID_PARAMS),
}


@pytest.mark.clause("D-4.6-02", "D-4.6-03", "D-4.2-10", "D-4.2-11", "D-4.2-13")
@pytest.mark.parametrize("case", UNREADABLE)
def test_request_that_cannot_be_read_is_answered_with_the_code_that_says_why(client: DriverClient, case: str) -> None:
    spoil, code = UNREADABLE[case]
    request = client.request(STREAM, Role.PRODUCER)
    client.send(spoil(request))
    require_refusal(client, client.answer(request.correlation_id), code)
    client.hold(STREAM, Role.PRODUCER, client_id=request.client_id)


@pytest.mark.clause("D-4.6-05", "D-4.2-10", "D-4.2-11", "D-4.2-13")
@pytest.mark.parametrize("role", Role)
def test_failure_of_the_drivers_own_is_an_internal_error(
    driver: RunningDriver, client: DriverClient, fresh: int, role: Role
) -> None:
    (namespace(driver) / str(fresh)).write_text("a file where a directory has to be")
    answer = client.attach(fresh, role)
    require_refusal(client, answer, ResponseCode.INTERNAL_ERROR)
    assert client.attach(STREAM, role).code is ResponseCode.OK, "other streams go on"
    (namespace(driver) / str(fresh)).unlink()
    assert client.attach(fresh, role).code is ResponseCode.OK


@pytest.mark.clause("D-4.3-04", "D-4.3-05")
@pytest.mark.parametrize("asked", [1, 4, 8])
def test_fewer_dimensions_are_granted_and_the_configured_number_is_returned(client: DriverClient, asked: int) -> None:
    assert client.hold(STREAM, max_dims=asked).answer.max_dims == 8


@pytest.mark.clause("D-4.3-02")
@pytest.mark.parametrize("expected", [0, 1])
def test_active_layout_version_is_returned(client: DriverClient, expected: int) -> None:
    held = client.hold(STREAM, expected_layout_version=expected)
    assert held.answer.layout_version == superblock(held.answer.header_region_uri).layout_version == 1


@pytest.mark.clause("D-4.3-07")
@pytest.mark.parametrize("wish", [Bool.FALSE, None])
@pytest.mark.parametrize("role", Role)
def test_lack_of_hugepages_matters_only_to_who_requires_them(
    client: DriverClient, wish: Bool | None, role: Role
) -> None:
    assert client.attach(STREAM, role, require_hugepages=wish).code is ResponseCode.OK


# Leases


@pytest.mark.clause("D-4.1-01", "D-4.1-02", "D-4.9-02")
@pytest.mark.parametrize(
    "changes", [{"stream_id": READ_ONLY}, {"client_id": 1}, {"role": Role.CONSUMER}], ids=["stream", "client", "role"]
)
def test_detach_that_does_not_fit_the_lease_leaves_it(client: DriverClient, changes: dict[str, Any]) -> None:
    held = client.hold(STREAM, Role.PRODUCER)
    assert held.detach(**changes).code is ResponseCode.REJECTED
    announce = client.announce_of(STREAM)
    assert (announce.epoch, announce.producer_id) == (held.epoch, held.client_id)
    assert client.of(ShmLeaseRevoked, lambda notice: notice.lease_id == held.lease_id) == []
    assert held.detach().code is ResponseCode.OK


@pytest.mark.clause("D-4.1-01", "D-4.1-02", "D-4.4-04")
@pytest.mark.parametrize(
    "changes",
    [{"stream_id": READ_ONLY}, {"client_id": 1}, {"role": Role.PRODUCER}, {"lease_id": 1}],
    ids=["stream", "client", "role", "lease"],
)
def test_keepalive_that_does_not_fit_the_lease_extends_nothing(
    strict_client: DriverClient, changes: dict[str, Any]
) -> None:
    held = strict_client.hold(STREAM)
    started = time.monotonic()
    while not strict_client.of(ShmLeaseRevoked, lambda notice: notice.lease_id == held.lease_id):
        assert time.monotonic() < started + 30, "an unfit keepalive kept the lease alive"
        held.keepalive(**changes)
        time.sleep(0.02)
    assert strict_client.revoked(held.lease_id).reason is LeaseRevokeReason.EXPIRED


@pytest.mark.clause("D-4.9-01", "D-4.6-01", "D-4.4-06")
def test_detached_lease_is_gone(client: DriverClient) -> None:
    held = client.hold(STREAM)
    answer = held.detach(correlation_id=-99)
    assert (answer.correlation_id, answer.code) == (-99, ResponseCode.OK)
    assert client.revoked(held.lease_id).reason is LeaseRevokeReason.DETACHED
    held.keepalive()
    told = client.wait_for(ShmLeaseRevoked, lambda notice: notice.reason is LeaseRevokeReason.REVOKED)
    assert (told.lease_id, told.client_id) == (held.lease_id, held.client_id), "it was not accepted as active"


@pytest.mark.clause("D-4.9-03")
def test_second_detach_is_rejected_and_changes_nothing(client: DriverClient) -> None:
    held = client.hold(STREAM, Role.PRODUCER)
    assert held.detach().code is ResponseCode.OK
    epoch = client.announce_of(STREAM).epoch
    again = held.detach()
    assert again.code is ResponseCode.REJECTED
    assert again.error_message
    assert client.announce_of(STREAM).epoch == epoch
    assert len(client.of(ShmLeaseRevoked, lambda notice: notice.lease_id == held.lease_id)) == 1


@pytest.mark.clause("D-4.8-05")
@pytest.mark.parametrize("stream", [STREAM, READ_ONLY])
def test_second_lease_of_a_client_is_rejected_and_the_first_stays(client: DriverClient, stream: int) -> None:
    first = client.hold(STREAM)
    require_refusal(client, client.attach(stream, client_id=first.client_id), ResponseCode.REJECTED)
    assert first.detach().code is ResponseCode.OK
    client.hold(stream, client_id=first.client_id)


@pytest.mark.clause("D-5-01", "D-5-02", "D-4.6-04")
def test_of_many_producers_at_once_one_wins(client: DriverClient) -> None:
    requests = [client.request(STREAM, Role.PRODUCER) for _ in range(20)]
    for request in requests:
        client.send(request)
    answers = [client.answer(request.correlation_id) for request in requests]
    granted, *refused = sorted(answers, key=lambda answer: answer.code)
    assert granted.code is ResponseCode.OK
    assert [answer.code for answer in refused] == [ResponseCode.REJECTED] * 19
    announce = client.announce_of(STREAM)
    winner = next(request for request in requests if request.correlation_id == granted.correlation_id)
    assert (announce.producer_id, announce.epoch) == (winner.client_id, granted.epoch), "nothing changed for it"


@pytest.mark.clause("D-5-03", "D-4.8-01")
def test_many_consumers_share_a_stream(client: DriverClient) -> None:
    held = [client.hold(STREAM) for _ in range(32)]
    assert len({lease.lease_id for lease in held}) == 32
    assert {lease.epoch for lease in held} == {held[0].epoch}


@pytest.mark.clause("D-4.8-01", "D-4.8-02")
def test_lease_ids_are_never_used_again(client: DriverClient) -> None:
    seen = set()
    for _ in range(100):
        held = client.hold(STREAM, client_id=900)
        assert held.detach().code is ResponseCode.OK
        seen.add(held.lease_id)
    assert len(seen) == 100


# Ends, epochs, announces


@pytest.mark.clause("D-6-01", "D-4.9-04")
def test_epoch_rises_when_a_producer_attaches_and_when_it_detaches(client: DriverClient) -> None:
    epochs = [client.announce_of(STREAM).epoch]
    for _ in range(3):
        held = client.hold(STREAM, Role.PRODUCER)
        epochs.append(held.epoch)
        assert held.detach().code is ResponseCode.OK
        epochs.append(client.announce_of(STREAM, lambda it: it.producer_id == 0).epoch)
    assert epochs == sorted(set(epochs))


@pytest.mark.clause("D-4.9-04", "D-4.9-06", "W-10.1.1-01")
def test_detached_producer_is_announced_without_waiting_for_the_period(strict_client: DriverClient) -> None:
    """The period of this driver's announces is a minute."""
    held = strict_client.hold(STREAM, Role.PRODUCER)
    attached = strict_client.wait_for(ShmPoolAnnounce, lambda it: it.epoch == held.epoch)
    assert attached.producer_id == held.client_id
    held.detach()
    announce = strict_client.wait_for(ShmPoolAnnounce, lambda it: it.stream_id == STREAM and it.epoch > held.epoch)
    assert announce.producer_id == 0


@pytest.mark.clause("D-4.4-01", "D-4.4-06", "D-4.4-10", "D-4.7-05", "D-4.7-07", "D-4.9-05", "D-4.9-06", "D-4.10-01")
def test_silent_producer_expires_and_a_new_epoch_is_announced_at_once(strict_client: DriverClient) -> None:
    """Announces are a minute apart: what comes before that came because of the expiry."""
    held = strict_client.hold(STREAM, Role.PRODUCER)
    notice = strict_client.revoked(held.lease_id)
    assert notice.reason is LeaseRevokeReason.EXPIRED
    assert (notice.stream_id, notice.client_id, notice.role) == (STREAM, held.client_id, Role.PRODUCER)
    announce = strict_client.wait_for(ShmPoolAnnounce, lambda it: it.stream_id == STREAM and it.epoch > held.epoch)
    assert announce.producer_id == 0
    assert notice.timestamp_ns < announce.announce_timestamp_ns
    assert held.detach().code is ResponseCode.REJECTED
    assert strict_client.hold(STREAM, Role.PRODUCER, client_id=held.client_id).epoch > announce.epoch


@pytest.mark.clause("D-4.9-05", "D-4.9-06", "D-4.7-05", "D-4.4-01")
def test_silent_consumer_expires_and_the_epoch_stays(strict_client: DriverClient) -> None:
    held = strict_client.hold(STREAM)
    notice = strict_client.revoked(held.lease_id)
    assert (notice.reason, notice.role) == (LeaseRevokeReason.EXPIRED, Role.CONSUMER)
    assert (notice.stream_id, notice.client_id) == (STREAM, held.client_id)
    assert strict_client.hold(STREAM).epoch == held.epoch


@pytest.mark.clause("D-4.7-02", "D-4.7-06", "D-4.7-07", "D-4.9-05", "D-4.9-06", "D-3-03", "D-6-03")
def test_producer_of_damaged_regions_is_revoked_and_the_regions_are_made_anew(client: DriverClient) -> None:
    held = client.hold(STREAM, Role.PRODUCER)
    with open(held.answer.payload_pools[1].region_uri.removeprefix("shm:file?path="), "r+b") as file:
        file.write(b"\x00")
    require_refusal(client, client.attach(STREAM), ResponseCode.INTERNAL_ERROR)
    notice = client.revoked(held.lease_id)
    assert notice.reason is LeaseRevokeReason.REVOKED
    assert (notice.stream_id, notice.client_id, notice.role) == (STREAM, held.client_id, Role.PRODUCER)
    announce = client.wait_for(ShmPoolAnnounce, lambda it: it.stream_id == STREAM and it.epoch > held.epoch)
    assert (announce.producer_id, client.hold(STREAM).epoch) == (0, announce.epoch)
    assert held.detach().code is ResponseCode.REJECTED


@pytest.mark.clause("D-6-03", "D-3-03")
def test_removed_files_are_made_anew_in_a_higher_epoch(client: DriverClient) -> None:
    before = client.hold(STREAM)
    os.unlink(before.answer.header_region_uri.removeprefix("shm:file?path="))
    require_refusal(client, client.attach(STREAM), ResponseCode.INTERNAL_ERROR)
    after = client.hold(STREAM)
    assert after.epoch > before.epoch
    assert superblock(after.answer.header_region_uri).epoch == after.epoch


@pytest.mark.clause("D-4.4-03", "D-4.1-05")
def test_keepalives_keep_a_lease_and_only_the_silent_one_is_lost(base_dir: Path) -> None:
    values = configuration(base_dir, lease_expiry_ms=6_000)
    with running_driver("external", base_dir, values) as driver, DriverClient(driver.config) as client:
        others = [client.hold(STREAM, Role.PRODUCER), *(client.hold(STREAM) for _ in range(3))]
        silent = client.hold(STREAM)
        deadline = time.monotonic() + 60
        while not client.of(ShmLeaseRevoked):
            assert time.monotonic() < deadline
            for lease in others:
                lease.keepalive()
            time.sleep(0.02)
        assert [notice.lease_id for notice in client.of(ShmLeaseRevoked)] == [silent.lease_id]
        client.hold(STREAM, client_id=silent.client_id)  # its name is free again
        assert [lease.detach().code for lease in others] == [ResponseCode.OK] * 4


@pytest.mark.clause("D-4.1-04")
@pytest.mark.parametrize("kind", KINDS)
def test_lease_without_a_bound_says_so_and_stays(kind: Kind, base_dir: Path) -> None:
    values = configuration(base_dir, lease_expiry_ms=0, keepalive_interval_ms=10)
    with running_driver(kind, base_dir, values) as driver, DriverClient(driver.config) as client:
        held = client.hold(STREAM)
        assert held.answer.lease_expiry_timestamp_ns is None
        time.sleep(0.5)
        assert held.detach().code is ResponseCode.OK
    with running_driver(kind, base_dir, configuration(base_dir)) as driver, DriverClient(driver.config) as client:
        before = time.monotonic_ns()
        expiry = client.hold(STREAM).answer.lease_expiry_timestamp_ns
        assert expiry is not None
        assert before + 120 * 10**9 <= expiry <= time.monotonic_ns() + 120 * 10**9


@pytest.mark.clause("D-8-02", "D-8-03", "D-8-04")
def test_announce_says_what_the_attach_response_said(client: DriverClient) -> None:
    nobody = client.announce_of(STREAM)
    assert nobody.producer_id == 0
    held = client.hold(STREAM, Role.PRODUCER, client_id=77)
    announce = client.announce_of(STREAM, lambda it: it.epoch == held.epoch)
    assert announce.producer_id == 77
    assert StreamLayout.from_announce(announce) == StreamLayout.from_announce(held.answer)  # type: ignore[arg-type]
    held.detach()
    assert client.announce_of(STREAM, lambda it: it.epoch > held.epoch).producer_id == 0


@pytest.mark.clause("D-3-04")
def test_epoch_on_disk_changes_only_with_the_drivers_announce(driver: RunningDriver, client: DriverClient) -> None:
    held = client.hold(STREAM, Role.PRODUCER)
    for _ in range(20):
        held.keepalive()
        client.attach(STREAM, expected_layout_version=2)
        client.attach(STREAM, Role.PRODUCER)
    announce = client.announce_of(STREAM)
    block = superblock(announce.header_region_uri)
    assert (announce.epoch, block.epoch) == (held.epoch, held.epoch)
    assert (announce.layout_version, block.layout_version) == (1, 1)
    on_disk = sorted(int(path.name) for path in (namespace(driver) / str(STREAM)).iterdir())
    assert on_disk[-1] == held.epoch


@pytest.mark.clause("D-9-01")
@pytest.mark.parametrize("role", Role)
def test_link_out_of_the_base_is_not_followed(
    driver: RunningDriver, client: DriverClient, fresh: int, tmp_path: Path, role: Role
) -> None:
    (namespace(driver) / str(fresh)).symlink_to(tmp_path)
    require_refusal(client, client.attach(fresh, role), ResponseCode.INTERNAL_ERROR)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.clause("D-9-02")
def test_anything_but_a_regular_file_is_no_region(client: DriverClient) -> None:
    held = client.hold(STREAM)
    path = held.answer.payload_pools[0].region_uri.removeprefix("shm:file?path=")
    os.unlink(path)
    os.mkfifo(path)
    require_refusal(client, client.attach(STREAM), ResponseCode.INTERNAL_ERROR)


def ends(client: DriverClient, lease: Held) -> list[LeaseRevokeReason]:
    """What was said of a lease, its holder having tried to give it back once more."""
    assert lease.detach().code is ResponseCode.REJECTED
    return [notice.reason for notice in client.of(ShmLeaseRevoked) if notice.lease_id == lease.lease_id]


@pytest.mark.clause("D-4.7-01")
def test_expired_lease_ends_once_and_for_good(strict_client: DriverClient) -> None:
    expired = strict_client.hold(STREAM)
    strict_client.revoked(expired.lease_id)
    assert ends(strict_client, expired) == [LeaseRevokeReason.EXPIRED]


@pytest.mark.clause("D-4.7-01")
def test_lease_given_back_or_revoked_ends_once_and_for_good(client: DriverClient) -> None:
    detached = client.hold(STREAM)
    detached.detach()
    revoked = client.hold(STREAM, Role.PRODUCER)
    with open(revoked.answer.header_region_uri.removeprefix("shm:file?path="), "r+b") as file:
        file.write(b"\x00")
    client.attach(STREAM)
    client.revoked(revoked.lease_id)
    assert ends(client, detached) == [LeaseRevokeReason.DETACHED]
    assert ends(client, revoked) == [LeaseRevokeReason.REVOKED]

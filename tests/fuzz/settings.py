"""Text that people and peers write: region URIs, channels, addresses, Spark's options, configuration files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from framepool.bridge.fallback import link_of
from framepool.config import Config, load
from framepool.config.file import variables
from framepool.discovery.address import Address, addresses
from framepool.discovery.query import Query
from framepool.errors import ConfigurationError, EncodeError, PathNotAllowed, RegionUriError
from framepool.service.tags import LONGEST, service_tag, tag_filter
from framepool.shm.paths import AllowedDirectories
from framepool.shm.uri import RegionUri
from framepool.spark.options import Options
from framepool.transport import channel
from tests.fuzz.draw import Draw, pieced
from tests.fuzz.places import scratch

NAMES: Final = tuple(Options.__struct_encode_fields__)
VARIABLES: Final = tuple(name for name, _, _ in variables())
PLAIN: Final = Config()


def one(data: bytes) -> None:
    draw = Draw(data)
    draw.chosen((_uri, _channel, _fallback, _address, _options, _toml, _names))(draw)


def _uri(draw: Draw) -> None:
    """What is a URI says the same when it is written, and no path leads out of the allowed directory."""
    try:
        uri = RegionUri.parse(draw.text())
    except RegionUriError:
        return
    assert RegionUri.parse(str(uri)) == uri
    try:
        base, below = AllowedDirectories([scratch()]).locate(uri.path)
    except PathNotAllowed:
        return
    assert base == str(scratch())
    assert below
    assert ".." not in below


def _channel(draw: Draw) -> None:
    text = draw.text()
    try:
        media, parameters = channel.parse(text)
    except ConfigurationError:
        return
    assert channel.parse(channel.build(media, parameters)) == (media, parameters)
    for complete in (channel.control, channel.descriptor_subscription, channel.control_publication):
        assert parameters.items() <= channel.parse(complete(text))[1].items()
    channel.place(text)


def _fallback(draw: Draw) -> None:
    with suppress(ConfigurationError):
        link_of(draw.text(), PLAIN)


def _address(draw: Draw) -> None:
    with suppress(ConfigurationError):
        str(
            Address(
                channel=draw.piece().decode(errors="replace"),
                stream_id=draw.number(5),
                response_stream_id=draw.number(5),
                response_channel=draw.text(),
            )
        )


def _options(draw: Draw) -> None:
    given = {"path": draw.piece().decode(errors="replace")}
    while draw:
        given[draw.chosen(NAMES)] = draw.piece().decode(errors="replace")
    try:
        options = Options.of(given)
    except ConfigurationError:
        return
    options.selection()
    assert options.start >= 0
    assert options.path.startswith("/")


def _toml(draw: Draw) -> None:
    environ = {draw.chosen(VARIABLES): draw.piece().decode(errors="replace") for _ in range(draw.number() % 4)}
    path = scratch() / "fuzz.toml"
    path.write_bytes(draw.rest())
    try:
        config = load(path, environ)
        if not config.discovery.registries:
            addresses(config)
        config.discovery_stream_id
    except ConfigurationError:
        pass
    finally:
        path.unlink()


def _names(draw: Draw) -> None:
    name, instance = (draw.piece().decode(errors="replace") for _ in range(2))
    try:
        tag = service_tag(name, instance)
        tag_filter(tag)
        assert len(tag) <= LONGEST
    except ConfigurationError:
        pass
    try:
        query = Query(name=name, tags=(instance,), stream_id=draw.number(5))
        asked = Address(channel="aeron:ipc", stream_id=1, response_channel="aeron:ipc", response_stream_id=2)
        query.request(1, 2, asked).encode()
        str(query)
    except (EncodeError, ValueError):  # the caller's mistake, told as it is usual in Python
        pass


def seeds() -> Iterator[bytes]:
    kinds: list[Callable[[Draw], None]] = [_uri, _channel, _fallback, _address, _options, _toml, _names]
    for uri in (
        "shm:file?path=/dev/shm/a",
        "shm:file?path=/dev/shm/a/../b|require_hugepages=true",
        "shm:file?path=C:/a",
        f"shm:file?path={scratch()}/x",
        f"shm:file?path={scratch()}/../x",
        "shm:file?path=/a|require_hugepages=maybe",
    ):
        yield bytes([kinds.index(_uri)]) + uri.encode()
    for where in (
        "aeron:ipc",
        "aeron:ipc?term-length=64k",
        "aeron:udp?endpoint=localhost:40123|mtu=1408|stream-id=3|control-stream-id=9",
        "aeron:udp?control=[::1]:7|control-mode=dynamic|stream-id=70000",
        "bridge://far",
        "aeron:tcp?a=b|a=c",
    ):
        yield bytes([kinds.index(_channel)]) + where.encode()
        yield bytes([kinds.index(_fallback)]) + where.encode()
        yield bytes([kinds.index(_address)]) + pieced(where.encode()) + bytes([9, 0, 0, 0, 0] * 2) + where.encode()
    for words in (
        {"table": "frames", "payload": "inline", "stream": "1,2", "epoch": "3", "startSeq": "4"},
        {"startTime": "2026-01-01", "endTime": "2026-01-01T10:00:00+01:00", "strict": "true"},
        {"startingOffsets": "7", "maxFramesPerTrigger": "9", "failOnDataLoss": "false", "startTime": "-7"},
        {"endTime": "9" * 30, "stream": "１２", "partitionBytes": "1e9"},
    ):
        options = b"".join(bytes([NAMES.index(name)]) + pieced(value.encode()) for name, value in words.items())
        yield bytes([kinds.index(_options)]) + pieced(b"file:///a%20b") + options
    for text in TOML:
        yield bytes([kinds.index(_toml), 0]) + text.encode()
    for number in range(0, len(VARIABLES), 7):
        yield bytes([kinds.index(_toml), 1, number]) + pieced(b"3") + b"[aeron]\n"
    yield bytes([kinds.index(_names)]) + pieced(b"limiter", b"20000") + bytes(5)


TOML: Final = (
    "",
    '[aeron]\ndirectory = "/dev/shm/aeron"\ndriver_timeout = 3.0\nipc_term_length = 65536\n',
    '[driver]\nshm_base_dir = "/dev/shm"\nlease_expiry_ms = 3000\nkeepalive_interval_ms = 500\nmode = "0660"\n',
    "[profiles.default]\nnslots = 8\npools = [{pool_id = 1, stride_bytes = 65536}]\n",
    '[[streams]]\nstream_id = 10000\nprofile = "default"\nroles = ["producer", "consumer"]\n',
    '[console]\nhost = "::1"\nport = 0\nhosts = ["a.example"]\ntoken = "0123456789abcdef"\n',
    '[channels]\nannounce = "aeron:udp?endpoint=224.0.1.1:40456"\n[stream_ids]\ncontrol = 1000\n',
    '[discovery]\nchannel = "aeron:ipc"\nresponse_stream_id = 9\n[discovery.limits]\nmax_streams = 4\n',
    '[registry]\n[[registry.sources]]\ninstance_id = "a"\nchannel = "aeron:ipc"\n',
    '[recorder]\nsegment_bytes = 1048576\ncompression = "zstd"\n[supervisor]\nstale_periods = 4.5\n',
    '[bridge]\nbridge_id = "b"\npayload_channel = "aeron:udp?endpoint=127.0.0.1:1"\n'
    "[[mappings]]\nsource_stream_id = 1\ndest_stream_id = 2\n",
    "a = [[[[[[[[1]]]]]]]]\n",
    "x = 1979-05-27T07:32:00Z\ny = inf\nz = nan\nw = 0xfff\nv = '''a'''\n",
)

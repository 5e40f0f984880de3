"""Writes hand-vectors.json: messages the golden file lacks, their bytes put together with `struct` alone.

Nothing of framepool is imported here, so that the vectors can judge it. Each line below is one field of the
layout as decisions.md section 0 or LAYOUT.md has it. Run `python tests/golden/hand_vectors.py` after a change.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

u8, u16, u32, u64, i64 = (struct.Struct("<" + code).pack for code in "BHIQq")
PACKAGES = {900: "control", 901: "driver", 904: "trace", 910: "discovery"}
RING = "shm:file?path=/dev/shm/fp/default/10000/7/header.ring"
POOLS = [
    (1, 64, 4096, "shm:file?path=/dev/shm/fp/default/10000/7/1.pool"),
    (2, 64, 65536, "shm:file?path=/dev/shm/fp/default/10000/7/2.pool"),
    (65535, 64, 4294967232, ""),
]


def text(value: str) -> bytes:
    return u32(len(value)) + value.encode("ascii")


def group(block_length: int, *entries: bytes) -> bytes:
    return u16(block_length) + u16(len(entries)) + b"".join(entries)


def pool(id: int, nslots: int, stride: int, uri: str) -> bytes:
    return u16(id) + u32(nslots) + u32(stride) + text(uri)


def pool_fields(id: int, nslots: int, stride: int, uri: str) -> dict[str, Any]:
    return {"poolId": id, "poolNslots": nslots, "strideBytes": stride, "regionUri": uri}


def vector(
    message: str, schema: int, template: int, block: int, case: str, fields: dict[str, Any], *body: bytes
) -> dict[str, Any]:
    encoded = u16(block) + u16(template) + u16(schema) + u16(1) + b"".join(body)
    return {
        "schema": f"shm.tensorpool.{PACKAGES[schema]}",
        "schema_id": schema,
        "version": 1,
        "message": message,
        "template_id": template,
        "case": case,
        "codec_only": False,
        "with_header": True,
        "block_length": block,
        "length": len(encoded),
        "fields": fields,
        "hex": encoded.hex(),
    }


def announce(case: str, *pools: tuple[int, int, int, str]) -> dict[str, Any]:
    fields = {
        "streamId": 10000,
        "producerId": 77,
        "epoch": 7,
        "announceTimestampNs": 1234567890123456789,
        "announceClockDomain": "MONOTONIC",
        "layoutVersion": 1,
        "headerNslots": 64,
        "headerSlotBytes": 256,
        "payloadPools": [pool_fields(*each) for each in pools],
        "headerRegionUri": RING,
    }
    fixed = u32(10000) + u32(77) + u64(7) + u64(1234567890123456789) + u8(1) + u32(1) + u32(64) + u16(256)
    pools_group = group(10, *(pool(*each) for each in pools))
    return vector("ShmPoolAnnounce", 900, 1, 35, case, fields, fixed, pools_group, text(RING))


def result(stream: int, source: int | None, pools: list[Any], tags: list[str], name: str) -> bytes:
    return b"".join(
        (
            u32(stream) + u32(77) + u64(7) + u32(1) + u32(64) + u16(256) + u8(8),
            u64(2**64 - 1 if source is None else source) + u32(1000),
            group(10, *(pool(*each) for each in pools)),
            group(0, *(text(tag) for tag in tags)),
            text(RING) + text(name) + text("driver-1") + text("aeron:ipc"),
        )
    )


def result_fields(stream: int, source: int | None, pools: list[Any], tags: list[str], name: str) -> dict[str, Any]:
    return {
        "streamId": stream,
        "producerId": 77,
        "epoch": 7,
        "layoutVersion": 1,
        "headerNslots": 64,
        "headerSlotBytes": 256,
        "maxDims": 8,
        "dataSourceId": source,
        "driverControlStreamId": 1000,
        "payloadPools": [pool_fields(*each) for each in pools],
        "tags": [{"tag": tag} for tag in tags],
        "headerRegionUri": RING,
        "dataSourceName": name,
        "driverInstanceId": "driver-1",
        "driverControlChannel": "aeron:ipc",
    }


def vectors() -> list[dict[str, Any]]:
    first = (10000, 123456789012345, POOLS[:2], ["camera", "lab1"], "camera-1")
    second: tuple[int, None, list[Any], list[str], str] = (10001, None, [], [], "")
    trace = {"streamId": 10000, "epoch": 7, "seq": 123456, "traceId": 81985529216486895}
    trace_block = u32(10000) + u64(7) + u64(123456) + u64(81985529216486895)
    return [
        announce("one_pool", *POOLS[:1]),
        announce("three_pools", *POOLS),
        vector(
            "MetaBlobAnnounce", 900, 10, 28, "typical",
            {"streamId": 10000, "metaVersion": 3, "blobType": 2, "totalLen": 5000000000, "checksum": 2**64 - 1},
            u32(10000), u32(3), u32(2), u64(5000000000), u64(2**64 - 1),
        ),
        vector(
            "MetaBlobChunk", 900, 12, 16, "typical",
            {"streamId": 10000, "metaVersion": 3, "chunkOffset": 4294967296, "bytes": "00ff10"},
            u32(10000), u32(3), u64(4294967296), u32(3), b"\x00\xff\x10",
        ),
        vector(
            "MetaBlobChunk", 900, 12, 16, "empty",
            {"streamId": 10000, "metaVersion": 3, "chunkOffset": 0, "bytes": ""},
            u32(10000), u32(3), u64(0), u32(0),
        ),
        vector(
            "MetaBlobComplete", 900, 13, 16, "typical",
            {"streamId": 10000, "metaVersion": 3, "checksum": 3735928559},
            u32(10000), u32(3), u64(3735928559),
        ),
        vector(
            "ShmDriverShutdownRequest", 901, 8, 9, "typical",
            {"correlationId": -5, "reason": "ADMIN", "token": "open sesame", "errorMessage": "upgrade"},
            i64(-5), u8(1), text("open sesame"), text("upgrade"),
        ),
        vector(
            "ShmDriverShutdownRequest", 901, 8, 9, "no_token",
            {"correlationId": 0, "reason": "NORMAL", "token": "", "errorMessage": ""},
            i64(0), u8(0), text(""), text(""),
        ),
        vector(
            "ShmAttachResponse", 901, 2, 51, "two_pools_and_both_strings",
            {
                "correlationId": 11,
                "code": "INTERNAL_ERROR",
                "leaseId": 5001,
                "leaseExpiryTimestampNs": 1234567893123456789,
                "streamId": 10000,
                "epoch": 7,
                "layoutVersion": 1,
                "headerNslots": 64,
                "headerSlotBytes": 256,
                "maxDims": 8,
                "payloadPools": [pool_fields(*each) for each in POOLS[:2]],
                "headerRegionUri": RING,
                "errorMessage": "both are carried",
            },
            i64(11), u32(4), u64(5001), u64(1234567893123456789), u32(10000), u64(7), u32(1), u32(64), u16(256), u8(8),
            group(10, *(pool(*each) for each in POOLS[:2])), text(RING), text("both are carried"),
        ),
        vector(
            "DataSourceMeta", 900, 8, 16, "two_attributes",
            {
                "streamId": 10000,
                "metaVersion": 3,
                "timestampNs": 1,
                "attributes": [
                    {"key": "gain", "format": "text/plain", "value": "312e35"},
                    {"key": "raw", "format": "", "value": ""},
                ],
            },
            u32(10000), u32(3), u64(1),
            group(0, text("gain") + text("text/plain") + u32(3) + b"1.5", text("raw") + text("") + u32(0)),
        ),
        vector(
            "TraceLinkSet", 904, 1, 28, "one_parent",
            {**trace, "parents": [{"traceId": 1}]},
            trace_block, group(8, u64(1)),
        ),
        vector(
            "TraceLinkSet", 904, 1, 28, "two_parents",
            {**trace, "parents": [{"traceId": 42}, {"traceId": 2**64 - 1}]},
            trace_block, group(8, u64(42), u64(2**64 - 1)),
        ),
        vector(
            "DiscoveryResponse", 910, 2, 9, "two_results",
            {
                "requestId": 31337,
                "status": "OK",
                "results": [result_fields(*first), result_fields(*second)],
                "errorMessage": "",
            },
            u64(31337), u8(1), group(39, result(*first), result(*second)), text(""),
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    path = Path(__file__).with_name("hand-vectors.json")
    path.write_text(json.dumps(vectors(), indent=1) + "\n")

"""What people are shown of a state: the supervisor's streams and consumers, with what counters and previews add.

`Scene.look` is called once a second and gives plain values: rates are differences between two looks. What is told by
nobody is None and never a guess. Bounded: of very many streams the first are shown and the others counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from framepool.client.gauges import Gauge
from framepool.clock import NANOS_PER_SECOND
from framepool.supervisor.consumers import ConsumerView
from framepool.supervisor.notices import Notice
from framepool.supervisor.state import State
from framepool.supervisor.streams import Health, StreamView
from framepool.wire._generated.driver_901 import Role

MOST_SHOWN: Final = 500
"""Streams, and consumers of each."""
COLUMNS: Final = (
    "frames_per_s",
    "bytes_per_s",
    "gaps_per_s",
    "late_per_s",
    "latency_p50_ns",
    "latency_p90_ns",
    "latency_p99_ns",
    "epoch",
    "leases",
)
"""Of a stream, over time."""
TOTALS: Final = ("frames_per_s", "bytes_per_s", "drops_per_s", "latency_p99_ns")
LATENCIES: Final = ("p50_ns", "p90_ns", "p99_ns")

Latency = dict[str, int]
Losses = dict[tuple[int, int], tuple[int, int]]
"""Gaps and late frames of consumers, by stream and consumer."""
Seen = tuple[int | None, tuple[int, ...], str]
"""Bytes, shape and type of the last frame that a preview saw."""


class Scene:
    """Turns states into what is shown, remembering the last look for the sake of rates."""

    def __init__(self, *, bridged: Callable[[int], bool], seen: Callable[[int], Seen | None] = lambda _: None) -> None:
        """`bridged` says whether a stream came over a bridge; `seen` what a preview knows of one."""
        self._bridged = bridged
        self._seen = seen
        self._losses: Losses = {}
        self._looked_ns: int | None = None

    def look(self, state: State, gauges: Iterable[Gauge], own: Collection[int] = ()) -> dict[str, Any]:
        """Streams and totals; `own` are the consumer ids of our own previews."""
        now_ns = state.now_ns
        elapsed_ns = 0 if self._looked_ns is None else now_ns - self._looked_ns
        glance = _Glance(now_ns, elapsed_ns / NANOS_PER_SECOND, gauges, state, self._losses, own)
        shown = sorted(state.streams.values(), key=lambda each: each.stream_id)[:MOST_SHOWN]
        streams = [self._stream(each, glance) for each in shown]
        self._looked_ns, self._losses = now_ns, glance.losses
        return {
            "streams": streams,
            "more_streams": max(0, len(state.streams) - MOST_SHOWN),
            "totals": totals(streams),
        }

    def _stream(self, stream: StreamView, glance: _Glance) -> dict[str, Any]:
        said = stream.describe(glance.now_ns)
        live = stream.health is Health.LIVE
        shown = sorted(stream.consumers.values(), key=lambda each: each.consumer_id)[:MOST_SHOWN]
        consumers = [_consumer(each, glance) for each in shown]
        frame_bytes, shape, dtype = self._seen(stream.stream_id) or (None, (), "")
        producer = glance.told.get((Role.PRODUCER, stream.stream_id, stream.producer_id), {})
        frame_bytes = producer.get("frame_bytes", frame_bytes)
        frames_per_s = stream.rate_hz if live and stream.qos is not None else None if live else 0.0
        gaps, late = (_sum(each[name] for each in consumers) for name in ("gaps_per_s", "late_per_s"))
        return {
            "id": stream.stream_id,
            "name": stream.name,
            "summary": stream.summary,
            "state": stream.health.value,
            "why": why(stream, said),
            "producer": stream.producer_id or None,
            "epoch": stream.epoch,
            "nslots": said["nslots"],
            "bytes": said["bytes"],
            "seq": said["current_seq"],
            "frames_per_s": frames_per_s,
            "bytes_per_s": None if frames_per_s is None or frame_bytes is None else frames_per_s * frame_bytes,
            "frame_bytes": frame_bytes,
            "shape": list(shape),
            "dtype": dtype,
            "gaps_per_s": gaps,
            "late_per_s": late,
            "drops_per_s": None if gaps is None or late is None else gaps + late,
            "latency": best(each["latency"] for each in consumers),
            "leases": glance.leases[stream.stream_id],
            "activity_s": said["activity_age_s"],
            "bridged": self._bridged(stream.stream_id),
            "metadata": said["metadata"],
            "consumers": consumers,
        }


class _Glance:
    """What one look needs beside the streams themselves."""

    def __init__(
        self,
        now_ns: int,
        elapsed_s: float,
        gauges: Iterable[Gauge],
        state: State,
        losses: Losses,
        own: Collection[int],
    ) -> None:
        self.now_ns = now_ns
        self.elapsed_s = elapsed_s
        self.before = losses
        self.losses: Losses = {}
        self.own = own
        self.leases = Counter(lease.stream_id for lease in state.leases.leases.values())
        self.told: dict[tuple[Role, int, int], dict[str, int]] = {}
        for gauge in gauges:
            self.told.setdefault((gauge.role, gauge.stream_id, gauge.client_id), {})[gauge.name] = gauge.value


def _consumer(consumer: ConsumerView, glance: _Glance) -> dict[str, Any]:
    said = consumer.describe(glance.now_ns)
    who = (consumer.stream_id, consumer.consumer_id)
    lost = (said["drops_gap"], said["drops_late"])
    before, glance.losses[who] = glance.before.get(who), lost
    gaps, late = (
        max(0, now - then) / glance.elapsed_s if before is not None and glance.elapsed_s else None
        for now, then in zip(lost, before or lost, strict=True)
    )
    own = consumer.consumer_id in glance.own
    gauges = glance.told.get((Role.CONSUMER, *who), {})
    latency = {name: gauges[f"latency_{name}"] for name in LATENCIES if f"latency_{name}" in gauges}
    return {
        "id": consumer.consumer_id,
        "own": own,
        "state": "stale" if consumer.stale else "twice" if consumer.duplicate else "live",
        "mode": said["mode"],
        "max_rate_hz": said["max_rate_hz"],
        "frames_per_s": None if consumer.stale else said["rate_hz"],
        "drops_gap": lost[0],
        "drops_late": lost[1],
        "gaps_per_s": gaps,
        "late_per_s": late,
        "latency": None if own or len(latency) < len(LATENCIES) else latency,
    }


def why(stream: StreamView, said: dict[str, Any]) -> str:
    """Why a stream does not live, in a few words; nothing of one that does."""
    match stream.health:
        case Health.DEAD:
            return f"the producer died: {said['cause']}"
        case Health.VACANT:
            return "no producer"
        case Health.SILENT:
            return f"not announced for {said['announced_ago_s']:.0f} s"
    return ""


def best(latencies: Iterable[Latency | None]) -> Latency | None:
    """Of the reader that is served soonest: what the way costs, without what readers add by being busy."""
    return min((each for each in latencies if each is not None), key=lambda each: each["p50_ns"], default=None)


def totals(streams: list[dict[str, Any]]) -> dict[str, float | None]:
    """All streams together; the latency is that of the slowest of them."""
    latencies = [each["latency"]["p99_ns"] for each in streams if each["latency"] is not None]
    return {
        "frames_per_s": _sum(each["frames_per_s"] for each in streams),
        "bytes_per_s": _sum(each["bytes_per_s"] for each in streams),
        "drops_per_s": _sum(each["drops_per_s"] for each in streams),
        "latency_p99_ns": max(latencies, default=None),
    }


def row(stream: dict[str, Any]) -> dict[str, float | None]:
    """The numbers of a stream that are kept over time."""
    latency = stream["latency"] or {}
    return {**stream, **{f"latency_{name}": latency.get(name) for name in LATENCIES}}


def worded(notice: Notice) -> str:
    """A notice as a person would say it."""
    kind = notice.kind.value
    if notice.client_id is None:
        return f"{kind}: {notice.text}"
    who, _, what = kind.partition(" ")
    if who in ("producer", "consumer"):
        return f"{who} {notice.client_id} {what}: {notice.text}"
    return f"{kind}: consumer {notice.client_id} {notice.text}"


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None

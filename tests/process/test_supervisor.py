"""The supervisor over real streams: who died, who lags, who is told what, and who hears of it."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import framepool as fp
from framepool.agent import Backoff, Invoker, Runner, State
from framepool.config import Config, SupervisorConfig, SupervisorRule, load
from framepool.errors import CommandRefused, ConfigurationError
from framepool.service import Commander, Service, ServiceState, command
from framepool.supervisor.supervisor import Supervisor, SupervisorServer
from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver
from framepool.wire._generated.control_900 import Bool, ConsumerConfig, Mode
from tests.support.drivers import table, write_toml
from tests.support.onlooker import Onlooker, first_frame, small_config, wait_until
from tests.support.processes import Process, Processes
from tests.unit.supervisor import messages as say

STREAM = 10_000
WORKER = Path(__file__).with_name("supervisor_worker.py")
URI = "aeron:udp?endpoint=127.0.0.1:40123|stream-id=3000"


def rule(when: str, then: str, **more: Any) -> SupervisorRule:
    return msgspec.convert({"when": when, "then": then, **more}, SupervisorRule)


def supervised(base_dir: Path, *rules: SupervisorRule, **settings: Any) -> Config:
    config = small_config(base_dir, announce_period_ms=600)
    quick = {"report_period_ms": 1_000, "config_interval_ms": 50, "liveness_periods": 5.0, **settings}
    return msgspec.structs.replace(config, supervisor=SupervisorConfig(rules=rules, **quick))


class Watch:
    """A supervisor beside a driver, in threads of this process, with an onlooker and a commander."""

    def __init__(self, config: Config, pool: fp.Pool, supervisor: Supervisor, commander: Commander) -> None:
        self.config = config
        self.pool = pool
        self.supervisor = supervisor
        self.commander = commander

    def stream(self, stream_id: int = STREAM) -> dict[str, Any] | None:
        found = [each for each in self.supervisor.snapshot()["streams"] if each["stream_id"] == stream_id]
        return found[0] if found else None

    def consumer(self, eye: fp.Consumer) -> dict[str, Any] | None:
        stream = self.stream()
        assert eye.duties is not None
        consumer_id = eye.duties.introduction.consumer_id
        found = [] if stream is None else [c for c in stream["consumers"] if c["consumer_id"] == consumer_id]
        return found[0] if found else None

    def wait_for(self, condition: Callable[[], object]) -> None:
        wait_until(condition)

    def kinds(self) -> list[str]:
        return [notice.kind.value for notice in self.supervisor.notices()]


@pytest.fixture
def watch(base_dir: Path, request: pytest.FixtureRequest) -> Iterator[Watch]:
    config = supervised(base_dir, *getattr(request, "param", ()))
    with (
        fp.serve(config) as pool,
        Client.connect(config.aeron, name="supervisor") as client,
        Runner(supervisor := Supervisor(config, client), idle=Backoff()).start() as runner,
        Commander.connect(config) as commander,
    ):
        runner.wait_started()
        yield Watch(config, pool, supervisor, commander)


# Producers that die


def started(processes: Processes, base_dir: Path, **driver: Any) -> tuple[Path, Config]:
    values = table(base_dir, keepalive_interval_ms=100, **{"lease_expiry_ms": 1500, **driver})
    path = write_toml(base_dir / "site.toml", values)
    return path, load(path, {})


def notices(process: Process, kind: str) -> dict[str, Any]:
    """The next notice of a kind."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        said: dict[str, Any] = json.loads(process.wait_line("{", 30))
        if said.get("kind") == kind:
            return said
    raise AssertionError(process.lines)


@pytest.mark.clause("W-15.14-05")
def test_a_killed_producer_is_reported_dead_and_its_successor_alive(base_dir: Path, processes: Processes) -> None:
    path, _ = started(processes, base_dir)
    driver = processes.start("-m", "framepool", "driver", "--config", str(path), "--json")
    driver.wait_line("{")
    watcher = processes.start("-m", "framepool", "supervisor", "--config", str(path), "--json")
    assert json.loads(watcher.wait_line("{"))["tag"] == "service:supervisor"
    producer = processes.start(str(WORKER), str(path), str(STREAM), "leased")
    producer.wait_line("producing")
    first = notices(watcher, "producer new")
    assert first["stream_id"] == STREAM
    producer.kill()
    dead = notices(watcher, "producer dead")
    assert (dead["stream_id"], dead["client_id"], dead["level"]) == (STREAM, first["client_id"], "alert")
    assert dead["text"] in {"lease expired", "activity stale"}
    processes.start(str(WORKER), str(path), str(STREAM), "leased")
    assert notices(watcher, "producer new")["client_id"] != first["client_id"]


@pytest.mark.clause("W-15.14-05")
def test_a_producer_without_a_driver_is_dead_when_its_activity_is_stale(base_dir: Path, processes: Processes) -> None:
    path, config = started(processes, base_dir)
    media_driver = processes.start("-m", "framepool", "media-driver", "--dir", config.aeron.directory)
    media_driver.wait_line("media driver ready")
    watcher = processes.start("-m", "framepool", "supervisor", "--config", str(path), "--json")
    watcher.wait_line("{")
    producer = processes.start(str(WORKER), str(path), str(STREAM), "standalone")
    producer.wait_line("producing")
    notices(watcher, "producer new")
    producer.kill()
    dead = notices(watcher, "producer dead")
    assert (dead["stream_id"], dead["text"]) == (STREAM, "activity stale")


def test_a_producer_that_closes_is_not_dead(watch: Watch) -> None:
    camera = watch.pool.producer(STREAM)
    watch.wait_for(lambda: "producer new" in watch.kinds())
    camera.close()
    watch.wait_for(lambda: "producer left" in watch.kinds())
    watch.wait_for(lambda: (watch.stream() or {}).get("health") == "vacant")
    time.sleep(0.5)
    kinds = watch.kinds()
    assert "producer dead" not in kinds[kinds.index("producer left") :]


# What is known


@pytest.mark.clause("W-10.5-01")
def test_streams_their_metadata_their_reports_and_services_are_known(watch: Watch) -> None:
    with watch.pool.producer(STREAM, name="camera", metadata={"gain": 3}) as camera, watch.pool.consumer(STREAM) as eye:
        first_frame(camera, eye)
        watch.wait_for(lambda: (watch.consumer(eye) or {}).get("last_seq_seen") is not None)
        watch.wait_for(lambda: (watch.stream() or {}).get("metadata") == {"gain": 3})
        watch.wait_for(lambda: (it := watch.stream()) and (it["name"], it["health"]) == ("camera", "live"))
        watch.wait_for(lambda: (watch.stream() or {})["current_seq"] is not None)
        watch.wait_for(lambda: (watch.stream() or {})["activity_age_s"] is not None)
        snapshot = watch.supervisor.snapshot()
        assert {lease["role"] for lease in snapshot["leases"]} == {"PRODUCER", "CONSUMER"}
        assert "service:supervisor" in {service["tag"] for service in snapshot["services"]}


# What consumers are told


@pytest.mark.clause("W-10.5-02", "W-10.1.3-01")
def test_a_consumer_is_forced_into_another_mode_and_others_are_not(watch: Watch) -> None:
    pool = watch.pool
    with pool.producer(STREAM), pool.consumer(STREAM) as eye, pool.consumer(STREAM) as other:
        watch.wait_for(lambda: watch.consumer(eye) and watch.consumer(other))
        assert eye.duties is not None
        assert other.duties is not None
        who = f"{STREAM}/{eye.duties.introduction.consumer_id}"
        watch.commander.command("service:supervisor", "limit", who)
        watch.wait_for(lambda: eye.duties and eye.duties.assignment.mode is Mode.RATE_LIMITED)
        assert eye.duties.assignment.max_rate_hz == eye.duties.wishes.forced_rate_hz
        assert other.duties.assignment.mode is Mode.STREAM
        watch.wait_for(lambda: (watch.consumer(eye) or {})["mode"] == "RATE_LIMITED")
        watch.commander.command("service:supervisor", "unlimit", who)
        watch.wait_for(lambda: eye.duties and eye.duties.assignment.mode is Mode.STREAM)
        watch.commander.command("service:supervisor", "release", who)
        with pytest.raises(CommandRefused, match="nothing was ordered"):
            watch.commander.command("service:supervisor", "release", who)


@pytest.mark.parametrize("who", ["10000", "10000/x", f"{STREAM}/1", "9/9"])
def test_an_order_about_nobody_is_refused(watch: Watch, who: str) -> None:
    with watch.pool.producer(STREAM):
        watch.wait_for(watch.stream)
    with pytest.raises(CommandRefused, match=r"STREAM/CONSUMER|no consumer"):
        watch.commander.command("service:supervisor", "limit", who)


@pytest.mark.clause("W-15.4-03", "W-10.5-02")
@pytest.mark.parametrize("watch", [[rule("drops", "rate_limit")]], indirect=True)
def test_a_consumer_that_reports_high_losses_is_told_to_take_fewer(watch: Watch) -> None:
    camera = watch.pool.producer(STREAM)
    watch.wait_for(watch.stream)
    epoch = (watch.stream() or {})["epoch"]
    with Onlooker(watch.config) as onlooker:
        control, ids = onlooker.listen(watch.config.stream_ids.control), watch.config.stream_ids
        wait_until(lambda: onlooker.say(ids.control, say.hello()) or watch.stream()["consumers"])  # type: ignore[index]
        deadline = time.monotonic() + 30
        step = 0
        while not control.all(ConsumerConfig):
            assert time.monotonic() < deadline, watch.kinds()
            onlooker.say(ids.qos, say.qos(100 * step, 20 * step, epoch=epoch))
            onlooker.say(ids.control, say.hello())
            step += 1
            time.sleep(0.2)
        config = control.all(ConsumerConfig)[0]
        assert (config.consumer_id, config.mode, config.use_shm) == (say.CONSUMER, Mode.RATE_LIMITED, Bool.TRUE)
    assert "drops high" in watch.kinds()
    camera.close()


@pytest.mark.clause("W-10.1.3-04")
@pytest.mark.parametrize("watch", [[rule("no_shm", "fallback", payload_fallback_uri=URI)]], indirect=True)
def test_a_consumer_without_shared_memory_is_sent_elsewhere(watch: Watch) -> None:
    with watch.pool.producer(STREAM), watch.pool.consumer(STREAM, shared_memory=False, timeout=0) as eye:
        duties = eye.duties
        assert duties is not None
        watch.wait_for(lambda: duties.assignment.fallback is not None)
        assert duties.assignment.fallback is not None
        assert (duties.assignment.fallback.uri, duties.assignment.fallback.supported) == (URI, True)
        watch.wait_for(lambda: (watch.consumer(eye) or {})["fallback"] == URI)


@pytest.mark.clause("W-11-03")
@pytest.mark.parametrize("watch", [[rule("rate_limited", "stream")]], indirect=True)
def test_a_consumer_whose_wish_for_fewer_frames_is_declined_stays_on_the_shared_stream(watch: Watch) -> None:
    with watch.pool.producer(STREAM) as camera, watch.pool.consumer(STREAM, max_rate_hz=1) as eye:
        duties = eye.duties
        assert duties is not None
        watch.wait_for(lambda: duties.assignment.mode is Mode.STREAM)
        assert not duties.assignment.descriptor
        first_frame(camera, eye)


@pytest.mark.clause("W-10.1.2-12")
def test_ids_for_consumers_are_given_out_once(watch: Watch) -> None:
    with watch.pool.producer(STREAM):
        ids = [watch.commander.command("service:supervisor", "consumer_id", STREAM).result for _ in range(20)]
        assert len(set(ids)) == 20
        (given, *_) = ids
        assert isinstance(given, int)
        with watch.pool.consumer(STREAM, consumer_id=given) as eye:
            watch.wait_for(lambda: watch.consumer(eye))
            assert (watch.consumer(eye) or {})["consumer_id"] == given


# Who hears of it


def test_alerts_are_events_on_the_status_stream(watch: Watch) -> None:
    with Onlooker(watch.config) as onlooker:
        stream_ids = watch.config.stream_ids
        onlooker.say(stream_ids.announce, say.announce(stream_id=77))
        heard: list[Any] = []

        def alerts() -> list[dict[str, Any]]:
            heard.extend(event for event in watch.commander.poll() if event.key == "alert")
            return [json.loads(event.value) for event in heard]

        wait_until(lambda: any(alert["stream_id"] == 77 for alert in alerts()))
        (alert,) = [alert for alert in alerts() if alert["stream_id"] == 77]
        assert (alert["kind"], alert["level"]) == ("stream silent", "alert")


class Camera(Service):
    """Something that can be started again."""

    def __init__(self, client: Client, config: Config) -> None:
        super().__init__(client, config, name="camera")
        self.restarts = 0

    @command
    def restart(self, times: int) -> None:
        """Start again."""
        self.restarts += times


@pytest.mark.clause("W-10.5-02")
@pytest.mark.parametrize(
    "watch", [[rule("producer_dead", "command", service="service:camera", command="restart", value=2)]], indirect=True
)
def test_the_death_of_a_producer_is_a_command_to_a_service(watch: Watch) -> None:
    with Client.connect(watch.config.aeron) as client:
        camera = Camera(client, watch.config)
        with Runner(camera).start() as runner, Onlooker(watch.config) as onlooker:
            runner.wait_started()
            ids = watch.config.stream_ids
            onlooker.say(ids.announce, say.announce(stream_id=77))
            wait_until(lambda: watch.stream(77))
            onlooker.say(ids.control, say.revoked(stream_id=77))
            wait_until(lambda: camera.restarts == 2)
    wait_until(lambda: any("accepted" in notice.text for notice in watch.supervisor.notices()))


def test_figures_are_served_for_prometheus(base_dir: Path, processes: Processes) -> None:
    pytest.importorskip("prometheus_client")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = supervised(base_dir, metrics_port=port)
    with fp.serve(config) as pool, pool.producer(STREAM, name="camera"), SupervisorServer(config).start() as server:
        assert server.metrics_port == port

        def figures() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                text: str = answer.read().decode()
                return text

        live = f'framepool_stream_health{{health="live",name="camera",stream="{STREAM}"}} 1.0'
        wait_until(lambda: live in figures())
        text = figures()
        assert f'framepool_stream_epoch{{name="camera",stream="{STREAM}"}}' in text
        assert 'framepool_notices_total{kind="stream new"} 1.0' in text
        assert 'framepool_service_age_seconds{host="' in text
        with pytest.raises(ConfigurationError, match="metrics_port"):
            SupervisorServer(config)
    with pytest.raises(OSError):
        figures()


# The agent


@pytest.mark.clause("W-15.16-03")
def test_the_supervisor_is_an_agent_that_whoever_likes_turns(base_dir: Path) -> None:
    config = supervised(base_dir)
    with fp.serve(config) as pool, Client.connect(config.aeron) as client:
        before = threading.active_count()
        supervisor = Supervisor(config, client)
        invoker = Invoker(supervisor)
        invoker.start()
        with pool.producer(STREAM):
            deadline = time.monotonic() + 20
            while not supervisor.snapshot()["streams"]:
                assert time.monotonic() < deadline
                assert invoker.invoke() >= 0
        assert threading.active_count() == before, "it has no thread of its own"
        invoker.close()
        assert (invoker.state, invoker.errors) == (State.CLOSED, 0)
        assert supervisor.state is ServiceState.GONE
        assert invoker.invoke() == 0


def test_a_stopped_supervisor_forgets_and_a_paused_one_decides_nothing(base_dir: Path) -> None:
    config = supervised(base_dir, rule("hello", "rate_limit"))
    with fp.serve(config) as pool, SupervisorServer(config).start() as server, Commander.connect(config) as commander:
        tag, supervisor = server.supervisor.tag, server.supervisor
        commander.command(tag, "pause")
        with pool.producer(STREAM), pool.consumer(STREAM) as eye:
            wait_until(lambda: any(stream["consumers"] for stream in supervisor.snapshot()["streams"]))
            time.sleep(0.5)
            assert eye.duties is not None
            assert eye.duties.assignment.mode is Mode.STREAM
            commander.command(tag, "resume")
            wait_until(lambda: eye.duties and eye.duties.assignment.mode is Mode.RATE_LIMITED)
            commander.command(tag, "stop")
            assert supervisor.snapshot()["streams"] == []
            commander.command(tag, "start")
            wait_until(lambda: supervisor.snapshot()["streams"])


def test_the_supervisor_comes_back_with_the_media_driver(base_dir: Path) -> None:
    config = supervised(base_dir)
    media_driver = MediaDriver(config.aeron)
    try:
        with SupervisorServer(config).start() as server:
            media_driver.close()
            wait_until(lambda: server.supervisor._lost)
            media_driver = MediaDriver(config.aeron)
            with Onlooker(config) as onlooker:
                wait_until(lambda: server.supervisor.counts["reconnects"])
                onlooker.say(config.stream_ids.announce, say.announce(stream_id=77))
                wait_until(lambda: server.supervisor.snapshot()["streams"])
    finally:
        media_driver.close()


def test_a_capture_is_folded_into_the_same_state(base_dir: Path, processes: Processes) -> None:
    path, config = started(processes, base_dir, announce_period_ms=1_000, lease_expiry_ms=60_000)
    driver = processes.start("-m", "framepool", "driver", "--config", str(path), "--json")
    driver.wait_line("{")
    tap = processes.start(
        "-m", "framepool", "tap", "control", "announce", "qos", "metadata", "--json", "--config", str(path)
    )
    tap.wait_line("framepool tap: listening")
    with fp.connect(config) as pool, pool.producer(STREAM, name="camera"), pool.consumer(STREAM) as eye:
        assert eye.duties is not None
        consumer_id = eye.duties.introduction.consumer_id
        captured: list[str] = []
        while not all(  # three times: what came before the announce that it goes with says nothing
            sum(word in line for line in captured) >= 3 for word in ('"ConsumerHello"', '"name": "camera"')
        ):
            captured.append(tap.line(30))
    capture = base_dir / "capture.jsonl"
    capture.write_text("\n".join(captured))
    said = processes.start("-m", "framepool", "supervisor", "--replay", str(capture), "--json", "--config", str(path))
    state = json.loads(said.line())
    (stream,) = state["streams"]
    assert (stream["stream_id"], stream["name"], stream["health"]) == (STREAM, "camera", "live")
    assert [each["consumer_id"] for each in stream["consumers"]] == [consumer_id]
    assert {"stream new", "producer new", "consumer new"} <= {each["kind"] for each in state["notices"]}
    shown = processes.start("-m", "framepool", "supervisor", "--replay", str(capture), "--config", str(path))
    assert shown.wait() == 0
    assert any(f"stream {STREAM} stream new" in line for line in shown.lines)


def test_a_capture_that_is_none_is_refused_with_its_line(base_dir: Path, processes: Processes) -> None:
    path, _ = started(processes, base_dir)
    capture = base_dir / "capture.jsonl"
    capture.write_text('{"time": "2026-01-01T00:00:00+00:00", "hex": "00"}\nnonsense\n')
    said = processes.start("-m", "framepool", "supervisor", "--replay", str(capture), "--config", str(path))
    assert said.wait() == 1
    assert any("line 2 is none of" in line for line in said.lines)

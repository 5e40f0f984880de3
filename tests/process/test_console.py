"""The console's server against real streams: what it shows, to whom, and what it costs to be rude to it."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from framepool.recorder.manifest import Manifest
from framepool.recorder.shelf import tables_of
from tests.support.console_site import STREAM, TOKEN, ConsoleSite
from tests.support.directories import private_directory
from tests.support.processes import Processes

DRIVER = "service:driver:default"


@pytest.fixture(scope="module")
def site() -> Iterator[ConsoleSite]:
    """A site with one stream, for tests that leave it as it was."""
    running = Processes(sys.executable)
    try:
        with private_directory() as base_dir:
            site = ConsoleSite(running, base_dir, console="max_sockets = 8\nmax_connections = 64")
            site.start_driver()
            site.publish(STREAM, "--name", "counter")
            site.start_console()
            site.wait_stream(lambda stream: stream["state"] == "live")
            yield site
            running.stop_all()
    finally:
        running.stop_all()


def address(site: ConsoleSite) -> tuple[str, int]:
    parts = urlsplit(site.url)
    assert parts.hostname
    assert parts.port
    return parts.hostname, parts.port


def handshake(site: ConsoleSite) -> bytes:
    """What opens a socket, without a client that answers."""
    return (
        f"GET /socket HTTP/1.1\r\nHost: {site.host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()


def is_open(connection: socket.socket) -> bool:
    """Whether the server has not ended a connection, whatever it said on it before."""
    connection.setblocking(False)
    try:
        while connection.recv(65_536):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


# What it shows


def test_a_report_may_draw_and_do_nothing_and_no_other_file_is_given_out(processes: Processes, base_dir: Path) -> None:
    site = ConsoleSite(processes, base_dir, console=f'recordings = "{base_dir}/recordings"')
    site.start_driver()
    manifest = Manifest(base_dir / "recordings" / "night")
    manifest.create(1)
    tables = tables_of(manifest.path)
    tables.mkdir()
    (tables / "report.html").write_text("<p>made by Spark")
    (base_dir / "recordings" / "secret.html").write_text("not yours")
    site.start_console()
    deadline = time.monotonic() + 20
    while not json.loads(site.request("GET", "/api/state")[2])["recordings"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    status, headers, body = site.request("GET", "/report?recording=night")
    assert (status, body) == (200, b"<p>made by Spark")
    assert "sandbox" in headers["content-security-policy"]
    assert "script-src" not in headers["content-security-policy"]
    for name in ("", "secret.html", "../recordings/night", "night/..", "..%2fnight", "morning"):
        assert site.request("GET", f"/report?recording={name}")[0] == 404, name


def test_the_page_loads_nothing_from_elsewhere_and_runs_no_inline_script(site: ConsoleSite) -> None:
    status, headers, body = site.request("GET", "/")
    assert status == 200
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy.replace("https", "http").split("script-src")[1].split(";")[0]
    assert headers["x-content-type-options"] == "nosniff"
    assert b"<script>" not in body
    for path in ("/static/app.js", "/static/style.css", "/static/vendor/uPlot.js", "/static/vendor/uPlot.LICENSE"):
        status, headers, body = site.request("GET", path)
        assert status == 200, path
        assert "content-security-policy" in headers


def test_only_files_of_the_page_are_served(site: ConsoleSite) -> None:
    for path in ("/static/../web.py", "/static/%2e%2e/web.py", "/static/../../config/console.py", "/web.py"):
        assert site.request("GET", path)[0] == 404, path


def test_a_stream_is_shown_with_its_name_rate_and_size(site: ConsoleSite) -> None:
    stream = site.wait_stream(lambda stream: (stream["frames_per_s"] or 0) > 10 and stream["bytes_per_s"])
    assert stream["name"] == "counter"
    assert stream["frame_bytes"] == 2 * 32 * 24
    assert stream["bytes_per_s"] == pytest.approx(stream["frames_per_s"] * stream["frame_bytes"])


def test_the_past_is_there_for_a_page_that_is_opened_later(site: ConsoleSite) -> None:
    site.wait_stream(lambda stream: stream["frames_per_s"])
    past = site.ask(f"/api/history?stream={STREAM}")
    assert len(past["time"]) == len(past["frames_per_s"]) > 0
    assert past["time"] == sorted(past["time"])
    assert str(STREAM) in site.ask("/api/history")["recent"]
    assert site.request("GET", "/api/history?stream=1e9")[0] == 400


def test_pictures_are_the_frames_that_were_published(site: ConsoleSite) -> None:
    with site.page(STREAM) as page:
        seqs = []
        for _ in range(5):
            header, values = page.picture()
            assert header["shape"] == [24, 32]
            assert values.shape == (24, 32)
            assert set(np.unique(values)) == {header["seq"] % 65_536}, "every pixel is the number of its frame"
            seqs.append(header["seq"])
        assert seqs == sorted(set(seqs))


def test_a_page_sees_the_part_that_it_asks_for(site: ConsoleSite) -> None:
    with site.page() as page:
        region = {"x": 30, "y": 20, "width": 10, "height": 10}
        page.say(type="watch", streams={str(STREAM): {"size": 64, "region": region}})
        header, values = page.picture()
        assert header["region"] == {"x": 30, "y": 20, "width": 2, "height": 4}
        assert values.shape == (4, 2)


def test_previews_are_rate_limited_consumers(site: ConsoleSite) -> None:
    with site.page(STREAM) as page:
        page.picture()
        stream = site.wait_stream(lambda stream: any(each["own"] for each in stream["consumers"]))
        (own,) = [each for each in stream["consumers"] if each["own"]]
        assert own["mode"] == "RATE_LIMITED"
        assert own["max_rate_hz"] == site.config.console.preview_rate_hz
        assert own["drops_gap"] == 0
    site.wait_stream(lambda stream: not any(each["own"] for each in stream["consumers"]))


def test_a_page_that_draws_nothing_gets_one_picture_and_one_state(site: ConsoleSite) -> None:
    with site.page(STREAM) as idle, site.page(STREAM) as busy:
        for _ in range(20):
            busy.picture()
        first, second = idle.receive(), idle.receive()
        assert {isinstance(first, tuple), isinstance(second, tuple)} == {True, False}
        with pytest.raises(TimeoutError):
            idle.receive(1.5)


# Who may


def test_other_hosts_and_other_origins_are_refused(site: ConsoleSite) -> None:
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1", "169.254.0.1"):
        assert site.request("GET", "/api/state", headers={"Host": host})[0] == 421, host
    for host in ("localhost", f"localhost:{urlsplit(site.url).port}", "127.0.0.1", "[::1]:1"):
        assert site.request("GET", "/api/state", headers={"Host": host})[0] == 200, host
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", "https://" + site.host + ".evil.example"):
        with pytest.raises(InvalidStatus, match="403"), site.page(origin=origin):
            pass
        assert site.request("GET", "/api/state", headers={"Origin": origin})[0] == 403
    with site.page(STREAM, origin=None) as program:
        program.state()


def test_looking_is_free_and_changing_takes_the_token(site: ConsoleSite) -> None:
    assert site.ask("/api/hello")["trusted"] is False
    assert site.ask("/api/hello", token=TOKEN)["trusted"] is True
    assert site.command(DRIVER, "state", token=None)[0] == 401
    assert site.command(DRIVER, "state", token="wrong")[0] == 401
    assert site.command(DRIVER, "state", token=TOKEN.upper())[0] == 401
    assert site.request("GET", "/api/hello", token="wrong")[0] == 401
    with pytest.raises(InvalidStatus, match="401"), site.page(token="wrong-token-of-somebody"):
        pass


def test_a_command_is_answered_by_its_echo(site: ConsoleSite) -> None:
    site.wait_state(lambda state: [each for each in state["services"] if each["tag"] == DRIVER])
    status, answer = site.command(DRIVER, "state")
    assert status == 200, answer
    assert answer["echo"]["key"] == "state"
    assert "running" in answer["result"]
    site.wait_state(lambda state: [each for each in state["events"] if each["about"] == DRIVER])


def test_a_command_that_is_refused_or_unheard_is_told_so(site: ConsoleSite) -> None:
    status, answer = site.command(DRIVER, "make coffee")
    assert status == 409
    assert "no command" in answer["error"]
    status, answer = site.command("service:nobody", "state")
    assert status == 504
    assert "service:nobody" in answer["error"]
    assert site.command(DRIVER, "state", 2**80)[0] == 409  # no event holds such a number
    for body in (
        "",
        [],
        {"tag": 1, "key": "x"},
        {"tag": "x", "key": "y", "more": 1},
        {"tag": "x" * 20_000, "key": "y"},
    ):
        assert site.request("POST", "/api/command", body, token=TOKEN)[0] == 400


# Who is rude


@pytest.mark.parametrize(
    "message",
    [
        "",
        "{",
        "[]",
        "null",
        '{"type":"watch"}',
        '{"type":"watch","streams":{"x":{}}}',
        '{"type":"watch","streams":{"1":{"size":"large"}}}',
        '{"type":"watch","streams":{"1":{"size":1,"region":{"x":0}}}}',
        '{"type":"drawn","streams":"all"}',
        '{"type":"shutdown"}',
        '{"type":"watch","streams":{' + ",".join(f'"{n}":{{}}' for n in range(100)) + "}}",
        b"\x00\xff",
    ],
)
def test_a_page_that_talks_nonsense_is_closed_and_nobody_else(site: ConsoleSite, message: str | bytes) -> None:
    with site.page(STREAM) as good, site.page() as bad:
        good.picture()
        bad.socket.send(message)
        assert bad.closed_with() == 1008
        good.picture()


def test_an_oversized_message_closes_its_page_only(site: ConsoleSite) -> None:
    with site.page(STREAM) as good, site.page(STREAM) as bad:
        bad.socket.send("x" * 100_000)
        assert bad.closed_with() == 1009
        good.picture()


def test_a_flood_of_messages_closes_its_page_only(site: ConsoleSite) -> None:
    with site.page(STREAM) as good, site.page(STREAM) as bad:
        with contextlib.suppress(ConnectionClosed):
            for _ in range(50_000):
                bad.say(type="drawn", streams=[STREAM])
        assert bad.closed_with() in (1008, 1006), "1006: what it still sent met a closed socket, before it read why"
        good.picture()


def test_odd_sizes_and_regions_are_harmless(site: ConsoleSite) -> None:
    with site.page() as page:
        for size, region in (
            (0, None),
            (-5, None),
            (2**40, None),
            (64, {"x": -(2**60), "y": 2**60, "width": -1, "height": 0}),
        ):
            page.say(type="watch", streams={str(STREAM): {"size": size, "region": region}})
            page.say(type="drawn", streams=[STREAM])
            _, values = page.picture()
            assert 1 <= max(values.shape) <= site.config.console.preview_pixels
        page.watch(4_000_000_000)  # a stream that nobody has
        page.state()


def test_a_thousand_connections_change_nothing_for_others(site: ConsoleSite) -> None:
    """Half of them never say a word; the others are pages that never answer."""
    crowd = []
    with site.page(STREAM) as good:
        before, _ = good.picture()
        try:
            for number in range(1_000):
                connection = socket.create_connection(address(site), timeout=20)
                crowd.append(connection)
                if number % 2:
                    connection.sendall(handshake(site))
                if number % 100 == 0:
                    good.picture()
            for _ in range(10):
                after, _ = good.picture()
            assert after["seq"] > before["seq"]
            silent, pages = crowd[::2], crowd[1::2]
            deadline = time.monotonic() + 30
            while (
                sum(is_open(each) for each in silent) > site.config.console.max_connections
                or sum(is_open(each) for each in pages) > site.config.console.max_sockets
                or good.state()["streams"][0]["state"] != "live"
            ):
                assert time.monotonic() < deadline
            with site.page(STREAM, token=TOKEN) as owner:  # who holds the token has a place whoever else is there
                owner.picture()
                owner.state()
            assert site.ask("/api/state")["streams"]
        finally:
            for connection in crowd:
                connection.close()


def test_a_connection_that_asks_nothing_is_ended(site: ConsoleSite) -> None:
    where = address(site)
    with socket.create_connection(where, timeout=20) as silent, socket.create_connection(where, timeout=20) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHost: ")
        for connection in (silent, slow):
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""


def test_pings_that_are_never_read_do_not_pile_up(site: ConsoleSite) -> None:
    ping = b"\x89\xfd" + b"\0\0\0\0" + bytes(125)
    with site.page(STREAM) as good, socket.create_connection(address(site), timeout=20) as raw:
        raw.sendall(handshake(site))
        assert raw.recv(12) == b"HTTP/1.1 101"
        watch = b'{"type":"watch","streams":{}}'
        raw.sendall(b"\x81" + bytes([0x80 | len(watch)]) + b"\0\0\0\0" + watch)
        sent = 0
        with contextlib.suppress(OSError):
            while sent < 200_000:
                raw.sendall(ping)
                sent += 1
        assert sent < 200_000, "they were all taken in"
        good.picture()


# Life and death


def test_a_producer_that_is_killed_is_shown_as_dead_and_the_next_one_as_live(
    processes: Processes, base_dir: Path
) -> None:
    site = ConsoleSite(processes, base_dir)
    site.start_driver()
    producer = site.publish()
    site.start_console()
    with site.page(STREAM) as page:
        page.picture()
        producer.kill()
        stream = site.wait_stream(lambda stream: stream["state"] == "dead")
        assert "died" in stream["why"]
        assert stream["frames_per_s"] == 0
        state = site.wait_state(lambda state: [each for each in state["events"] if each["level"] == "alert"])
        assert any(" dead: " in each["text"] for each in state["events"])
        site.publish()
        site.wait_stream(lambda stream: stream["state"] == "live" and stream["frames_per_s"])
        while page.picture(60)[0]["epoch"] != site.wait_stream(bool)["epoch"]:
            pass


def test_the_console_outlives_its_driver(processes: Processes, base_dir: Path) -> None:
    site = ConsoleSite(processes, base_dir)
    driver = site.start_driver()
    site.publish()
    site.start_console()
    with site.page(STREAM) as page:
        page.picture()
        site.wait_stream(lambda stream: stream["state"] == "live")  # a picture may come before the announce
        driver.kill()
        site.wait_stream(lambda stream: stream["state"] != "live")
        page.state()
        site.start_driver()
        site.wait_stream(lambda stream: stream["state"] == "live" and stream["frames_per_s"], timeout=60)
        while page.picture(60)[0]["epoch"] != site.wait_stream(bool)["epoch"]:
            pass


def test_ctrl_c_ends_it_in_good_order(processes: Processes, base_dir: Path) -> None:
    site = ConsoleSite(processes, base_dir)
    site.start_driver()
    site.publish()
    console = site.start_console()
    with site.page(STREAM) as page:
        page.picture()
        console.signal(signal.SIGINT)
        assert console.wait(20) == 0, console.lines
        assert [line for line in console.lines if "Traceback" in line] == []


def test_a_wrong_token_is_logged_and_a_flood_of_them_is_not(processes: Processes, base_dir: Path) -> None:
    site = ConsoleSite(processes, base_dir)
    site.start_driver()
    console = site.start_console()
    for _ in range(50):
        assert site.command(DRIVER, "state", token="wrong")[0] == 401
    console.signal(signal.SIGTERM)
    assert console.wait(20) == 0
    logged = [line for line in console.lines if "wrong token" in line]
    assert 1 <= len(logged) < 10
    assert "127.0.0.1" in logged[0]
    assert TOKEN not in "".join(console.lines[1:])


def test_with_a_token_for_everything_nothing_is_shown_without_it(processes: Processes, base_dir: Path) -> None:
    site = ConsoleSite(processes, base_dir, console='token_for = "everything"')
    site.start_driver()
    site.publish()
    site.start_console()
    for path in ("/api/state", "/api/hello", "/api/history"):
        assert site.request("GET", path)[0] == 401
        assert site.request("GET", path, token=TOKEN)[0] == 200
    with pytest.raises(InvalidStatus, match="401"), site.page():
        pass
    with pytest.raises(InvalidStatus, match="401"), site.page(token="somebody-elses-token"):
        pass


def test_a_read_only_console_refuses_the_token_too(processes: Processes, base_dir: Path) -> None:
    site = ConsoleSite(processes, base_dir)
    site.start_driver()
    site.start_console("--read-only")
    assert site.command(DRIVER, "state")[0] == 403
    assert site.ask("/api/hello", token=TOKEN)["read_only"] is True


def test_a_stream_without_a_driver_is_shown_too(processes: Processes, base_dir: Path) -> None:
    site = ConsoleSite(processes, base_dir)
    site.start_driver()
    script = (
        "import sys, time, numpy as np, framepool as fp\n"
        "from framepool.config import load\n"
        "with fp.connect(load(sys.argv[1])) as pool, pool.standalone(12345, name='alone') as camera:\n"
        "    while True:\n"
        "        camera.publish(np.full((4, 4), 9, np.uint8)); time.sleep(0.01)\n"
    )
    processes.start("-c", script, str(site.path))
    site.start_console()
    site.wait_stream(lambda stream: (stream["state"], stream["name"]) == ("live", "alone"), 12345)
    with site.page(12345) as page:
        header, values = page.picture(30)
        assert header["stream"] == 12345
        assert set(np.unique(values)) == {9}


def test_a_port_that_is_taken_is_one_line(processes: Processes, base_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        site = ConsoleSite(processes, base_dir, port=taken.getsockname()[1])
        console = site.framepool("console")
        assert console.wait(60) == 1
        assert len(console.lines) == 1
        assert "--port" in console.lines[0]


def test_without_a_media_driver_it_says_what_to_start(processes: Processes, base_dir: Path) -> None:
    site = ConsoleSite(processes, base_dir)
    console = site.framepool("console")
    assert console.wait(60) == 1
    assert "no media driver" in console.lines[-1]


def test_without_the_extra_it_says_what_to_install(processes: Processes) -> None:
    script = (
        "import sys; sys.modules['starlette'] = None; sys.argv = ['framepool', 'console']\n"
        "from framepool.cli import main; main()"
    )
    console = processes.start("-c", script)
    assert console.wait(60) == 1
    assert "framepool[console]" in console.lines[-1]

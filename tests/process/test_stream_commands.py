"""`framepool publish` and `framepool consume` as a person runs them, each in a process of its own."""

from __future__ import annotations

import importlib
import itertools
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest

import framepool as fp
from framepool.cli import patterns
from framepool.cli.patterns import BadSource, Pattern, PixelType, from_files, synthetic
from framepool.cli.stream import keep
from framepool.errors import FramepoolError
from tests.support.drivers import RunningDriver, running_driver, table
from tests.support.processes import Process, Processes

STREAM = 10_000
SMALL = ("--width=24", "--height=16", "--dtype=uint16")


@pytest.fixture
def driver(base_dir: Path) -> Iterator[RunningDriver]:
    values = table(base_dir)
    values["profiles"]["default"]["nslots"] = 256
    values["streams"] = [{"stream_id": STREAM}]
    values["channels"]["descriptor"] = "aeron:ipc?term-length=1m"  # nobody is left behind who pauses for seconds
    with running_driver("embedded", base_dir, values) as running:
        yield running


class Terminal:
    """Types commands against one driver."""

    def __init__(self, processes: Processes, driver: RunningDriver) -> None:
        self._processes = processes
        self._config = f"--config={driver.path}"

    def __call__(self, command: str, *args: str | Path) -> Process:
        return self._processes.start("-m", "framepool", command, str(STREAM), self._config, *map(str, args))


@pytest.fixture
def run(processes: Processes, driver: RunningDriver) -> Terminal:
    return Terminal(processes, driver)


def objects(process: Process) -> list[dict[str, Any]]:
    return [json.loads(line) for line in process.lines]


def test_frames_are_saved_whole_and_counted(run: Terminal, tmp_path: Path) -> None:
    publisher = run("publish", "--pattern=counter", "--rate=200", *SMALL, "--json")
    consumer = run("consume", "--count=30", "--save", tmp_path / "new" / "frames", "--json")
    assert consumer.wait(60) == 0, consumer.lines
    end = objects(consumer)[-1]
    assert end["event"] == "end"
    assert end["received"] == end["counts"]["received"] == 30
    assert end["frames_per_s"] > 0
    assert end["gigabytes_per_s"] > 0
    latency = [end["latency_us"][name] for name in ("p50", "p90", "p99", "p99.9", "max")]
    assert 0 < latency[0] <= latency[-1]
    paths = sorted((tmp_path / "new" / "frames").iterdir())
    assert len(paths) == 30, "and nothing half-written"
    for path in paths:
        stream, _epoch, seq = path.stem.split("-")
        assert int(stream) == STREAM
        image = np.load(path)
        assert (image.shape, image.dtype) == ((16, 24), np.uint16)
        assert np.all(image == int(seq) % 2**16), "the pattern counts frames as the stream does"
    publisher.signal(signal.SIGTERM)
    assert publisher.wait(60) == 0, publisher.lines
    end = objects(publisher)[-1]
    assert end["published"] == end["counts"]["published"] >= 30
    assert end["dropped"] == 0


def test_reader_of_a_fast_stream_takes_as_many_as_it_was_told(run: Terminal) -> None:
    publisher = run("publish", *SMALL, "--rate=0")
    consumer = run("consume", "--count=3", "--json")
    assert consumer.wait(60) == 0, consumer.lines
    end = objects(consumer)[-1]
    assert end["received"] == end["counts"]["received"] == 3
    publisher.signal(signal.SIGTERM)
    assert publisher.wait(60) == 0, publisher.lines


def test_saved_frames_can_be_published_again(run: Terminal, driver: RunningDriver, tmp_path: Path) -> None:
    sent = [np.random.default_rng(seed).random((3, 4, 3)) for seed in range(4)]
    for number, image in enumerate(sent):
        keep(image, tmp_path / f"{number:03}.npy")
    publisher = run("publish", "--from", tmp_path, "--loop", "--rate=100", "--name=again")
    with fp.connect(driver.config) as pool, pool.consumer(STREAM) as eye:
        seen: list[bytes] = []
        deadline = time.monotonic() + 30
        while len(set(seen)) < 4 and time.monotonic() < deadline:
            frame = eye.latest(0.5)
            if frame is not None:
                assert frame.shape == (3, 4, 3)
                seen.append(frame.copy().tobytes())
        assert set(seen) == {image.tobytes() for image in sent}
        while not pool.metadata.find("again") and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [source.stream_id for source in pool.metadata.find("again")] == [STREAM]
    publisher.signal(signal.SIGINT)
    assert publisher.wait(60) == 0, publisher.lines


def test_stack_is_published_once_along_its_first_axis(run: Terminal, tmp_path: Path) -> None:
    np.save(tmp_path / "stack.npy", np.zeros((7, 5, 6), np.uint8))
    publisher = run("publish", "--from", tmp_path / "stack.npy", "--rate=0", "--json")
    assert publisher.wait(60) == 0, publisher.lines
    assert objects(publisher)[-1]["published"] == 7


def test_lines_for_people_come_each_second_and_at_the_end(run: Terminal) -> None:
    publisher = run("publish", *SMALL, "--pattern=moving-spot")
    publisher.wait_line("", 60)
    consumer = run("consume", "--max-rate=20", "--seconds=2.5")
    assert consumer.wait(60) == 0, consumer.lines
    assert len(consumer.lines) >= 2
    assert all("frames/s" in line and "received" in line and "dropped" in line for line in consumer.lines)
    assert "latency" in consumer.lines[-1]
    assert float(consumer.lines[-1].split()[0]) < 60, "of the 100 a second that are published"
    publisher.signal(signal.SIGTERM)
    assert publisher.wait(60) == 0


def test_time_ends_a_publisher_that_waits_for_its_next_frame(run: Terminal) -> None:
    publisher = run("publish", *SMALL, "--rate=0.001", "--seconds=3", "--json")
    assert publisher.wait(60) == 0
    assert objects(publisher)[-1]["published"] == 1


def test_frame_that_fits_no_pool_is_said_so_at_once(run: Terminal) -> None:
    publisher = run("publish", "--width=1000", "--height=1000")
    assert publisher.wait(60) == 1
    assert len(publisher.lines) == 1
    assert "2000000 bytes fits none of its pools" in publisher.lines[0]


BAD = [
    (("publish", "0"), "no stream id"),
    (("publish", "10000", "--rate=-1"), "rate"),
    (("publish", "10000", "--width=0"), "width"),
    (("publish", "10000", "--pattern=noise", "--from=x.npy"), "not both"),
    (("publish", "10000", "--from=nowhere.npy"), "No such file"),
    (("consume", "10000", "--count=-1"), "count"),
    (("consume", "10000", "--seconds=nan"), "seconds"),
    (("consume", "10000", "--save=/dev/null/frames"), "--save"),
]


@pytest.mark.parametrize(("args", "why"), BAD, ids=lambda value: " ".join(value) if isinstance(value, tuple) else "")
def test_bad_input_is_refused_in_one_line(args: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    from framepool.cli import app

    with pytest.raises(SystemExit) as ended:
        app(args)
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"framepool {args[0]}: ")
    assert why in said[0]


@pytest.mark.parametrize("dtype", get_args(PixelType))
@pytest.mark.parametrize("pattern", get_args(Pattern))
def test_patterns_move_and_keep_shape_and_type(pattern: Pattern, dtype: PixelType) -> None:
    images = list(itertools.islice(synthetic(pattern, 40, 30, dtype), 3))
    assert all((image.shape, image.dtype) == ((30, 40), np.dtype(dtype)) for image in images)
    assert not np.array_equal(images[0], images[1])
    assert all(image.min() >= 0 for image in images)
    assert pattern == "counter" or images[0].max() > 50


def test_counter_goes_as_far_as_its_type() -> None:
    images = list(itertools.islice(synthetic("counter", 2, 1, "int8"), 130))
    assert [int(image[0, 0]) for image in images[:2] + images[127:]] == [0, 1, 127, 0, 1]


def test_files_that_hold_no_frames_are_named(tmp_path: Path) -> None:
    def saved(name: str, content: Any) -> Path:
        np.save(tmp_path / name, content, allow_pickle=True)
        return tmp_path / name

    (tmp_path / "text.npy").write_text("not an array")
    (tmp_path / "short.npy").write_bytes(saved("whole.npy", np.zeros(9)).read_bytes()[:100])
    (tmp_path / "empty").mkdir()
    np.savez(tmp_path / "archive", a=np.zeros(3))
    (tmp_path / "archive.npz").rename(tmp_path / "archive.npy")
    bad = {
        tmp_path / "text.npy": "plain numbers",
        tmp_path / "short.npy": "plain numbers",
        tmp_path / "archive.npy": "plain numbers",
        saved("objects.npy", np.array([{}, []], dtype=object)): "plain numbers",
        saved("scalar.npy", np.float32(3)): "holds no frame",
        saved("none.npy", np.zeros((0, 4, 4))): "holds no frame",
        saved("complex.npy", np.zeros((4, 4), complex)): "no wire type",
        tmp_path / "empty": "no .npy file",
        tmp_path / "nothing.npy": "No such file",
        tmp_path / "nothing.png": "no such file",
        tmp_path / "frames.txt": "frames come from",
    }
    for path, why in bad.items():
        with pytest.raises(BadSource, match=why) as caught:
            from_files(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_one_frame_and_a_stack_of_frames(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.arange(6).reshape(2, 3))
    np.save(tmp_path / "three.npy", np.arange(18).reshape(3, 2, 3))
    assert [image.tolist() for image in from_files(tmp_path / "one.npy")] == [[[0, 1, 2], [3, 4, 5]]]
    assert [int(image[0, 0]) for image in from_files(tmp_path / "three.npy")] == [0, 6, 12]
    assert [int(image[0, 0]) for image in itertools.islice(from_files(tmp_path / "three.npy", loop=True), 4)] == [
        0, 6, 12, 0,
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "package"), [("a.png", "imageio or pillow"), ("a.mp4", r"imageio\[pyav\]")])
def test_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str) -> None:
    (tmp_path / name).write_bytes(b"...")
    monkeypatch.setattr(patterns, "_library", lambda name: None)
    with pytest.raises(BadSource, match=package):
        from_files(tmp_path / name)


def test_pictures_and_videos_are_read_where_a_library_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a library that only looks like imageio: none is a dependency, not even of the tests."""
    (tmp_path / "a.mp4").write_bytes(b"...")
    frames = [np.full((2, 2, 3), number, np.uint8) for number in range(3)]
    library = SimpleNamespace(imiter=lambda path: iter(frames))
    monkeypatch.setattr(patterns, "_library", {"imageio.v3": library}.get)
    assert [int(image[0, 0, 0]) for image in from_files(tmp_path / "a.mp4")] == [0, 1, 2]

    def broken(path: Path) -> Iterator[Any]:
        raise ValueError("bad magic\nand more")

    library.imiter = broken
    with pytest.raises(BadSource, match=r"cannot be decoded: bad magic$"):
        from_files(tmp_path / "a.mp4")


def test_library_that_is_not_there_is_none() -> None:
    assert patterns._library("framepool.no_such_module") is None
    assert patterns._library("itertools") is importlib.import_module("itertools")


def test_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "frame.npy").mkdir()
    with pytest.raises(FramepoolError, match=r"frame\.npy"):
        keep(np.zeros(3), tmp_path / "frame.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["frame.npy"]

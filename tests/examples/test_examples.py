"""Every example runs as its README says, in processes of its own and with nothing shared with the machine."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import Process, Processes

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = 60.0


class Stage:
    """Runs the programs of one example, with Aeron and the streams in a private directory."""

    def __init__(self, processes: Processes, base_dir: Path) -> None:
        self._processes = processes
        self._base_dir = base_dir
        self._environment = {
            "AERON_DIR": str(base_dir / "aeron"),
            "FRAMEPOOL_DRIVER_SHM_BASE_DIR": str(base_dir),
            "FRAMEPOOL_DRIVER_LEASE_EXPIRY_MS": "60000",
            "PYTHONWARNINGS": "error",
        }

    def run(self, program: str, *args: str) -> Process:
        return self._processes.start(str(EXAMPLES / program), *args, env=self._environment)

    def framepool(self, *args: str) -> Process:
        return self._processes.start("-m", "framepool", *args, env=self._environment)

    def output(self, program: str, *args: str) -> list[str]:
        """What a program prints that ends by itself."""
        process = self.run(program, *args)
        assert process.wait(PATIENCE) == 0, process.lines
        return process.lines

    def files(self) -> list[Path]:
        return [path for path in self._base_dir.rglob("*.pool") if path.is_file()]


@pytest.fixture
def stage(processes: Processes, base_dir: Path) -> Iterator[Stage]:
    stage = Stage(processes, base_dir)
    yield stage
    assert stage.files() == [], "an example leaves no frames in shared memory"


def interrupt(process: Process) -> None:
    """Ctrl-C."""
    process.signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 0, process.lines


def numbers(pattern: str, lines: list[str]) -> list[tuple[int, ...]]:
    found = (re.search(pattern, line) for line in lines)
    return [tuple(map(int, match.groups())) for match in found if match]


def test_hello(stage: Stage) -> None:
    assert stage.output("01_hello/main.py") == ["hello: 480 x 640 uint16, mean 42"]


def test_camera_and_two_readers(stage: Stage) -> None:
    camera = stage.run("02_camera_two_consumers/camera.py")
    camera.wait_line("camera: publishing", PATIENCE)
    every = stage.run("02_camera_two_consumers/every_frame.py", "30")
    newest = stage.run("02_camera_two_consumers/newest_frame.py", "4")
    assert every.wait(PATIENCE) == 0, (every.lines, camera.close(), camera.wait(), camera.lines)
    assert newest.wait(PATIENCE) == 0, newest.lines
    interrupt(camera)
    read = numbers(r"^every frame: (\d+) has brightness (\d+)\.0$", every.lines)
    assert read
    assert all(brightness == seq % 1000 for seq, brightness in read)
    assert every.lines[-1].startswith("every frame: ")
    seen = [seq for (seq,) in numbers(r"^newest frame: (\d+), \(512, 512\)", newest.lines)]
    assert seen
    assert seen == sorted(set(seen))


def test_progressive_readout(stage: Stage) -> None:
    lines = stage.output("03_progressive_readout/main.py")
    parts = numbers(r"^frame (\d+): +(\d+) of 1024 rows, the last one is (\d+)$", lines)
    assert parts, "something was read before it was whole"
    assert all(rows == last for _, rows, last in parts)
    assert any(rows < 1024 for _, rows, _ in parts)
    assert [seq for (seq,) in numbers(r"^frame (\d+): whole$", lines)] == list(range(5))


def test_torch_consumer(stage: Stage) -> None:
    pytest.importorskip("torch", reason="needs the package torch: pip install torch")
    assert stage.output("04_torch_consumer/main.py") == ["torch: (4, 1, 64, 64), centres [0, 1, 2, 3]"]


def test_asyncio(stage: Stage) -> None:
    read = numbers(r"^asyncio: frame (\d+) has value (\d+)$", stage.output("05_asyncio/main.py"))
    assert len(read) == 10
    assert all(seq == value for seq, value in read)


def test_announce_only(stage: Stage) -> None:
    media_driver = stage.framepool("media-driver")
    media_driver.wait_line("media driver ready", PATIENCE)
    camera = stage.run("06_announce_only/camera.py")
    camera.wait_line("camera: announcing", PATIENCE)
    read = numbers(r"^reader: frame (\d+) has value (\d+)$", stage.output("06_announce_only/reader.py", "5"))
    assert read
    assert all(seq % 256 == value for seq, value in read)
    interrupt(camera)
    interrupt(media_driver)


def test_recording(stage: Stage) -> None:
    lines = stage.output("07_recording/main.py")
    ((kept, lost),) = numbers(r"^recording: (\d+) frames recorded, (\d+) lost, of 100 published$", lines)
    assert kept + lost == 100
    assert kept > 0
    assert numbers(r"^recording: the brightest is frame (\d+), uint16 \(480, 640\)$", lines)
    assert lines[-1] == "replay: the same bytes True, the same time True"


def test_every_example_has_a_readme_and_a_test() -> None:
    source = Path(__file__).read_text()
    names = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
    assert len(names) == 7
    for name in names:
        assert (EXAMPLES / name / "README.md").read_text().startswith("# ")
        programs = list((EXAMPLES / name).glob("*.py"))
        assert programs
        for program in programs:
            assert f"{name}/{program.name}" in source

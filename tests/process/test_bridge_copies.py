"""The processes at both ends of a link copy each byte of payload once, and the media driver is another process."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from framepool.transport.media_driver import MediaDriver
from tests.support.ports import free_port
from tests.support.processes import Processes

HERE = Path(__file__).parent


def test_each_end_copies_each_payload_byte_once(
    media_driver: MediaDriver, processes: Processes, tmp_path: Path
) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler: install the package gcc")
    library = tmp_path / "count_copies.so"
    flags = ["-O2", "-fno-builtin", "-fno-tree-loop-distribute-patterns", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, str(HERE / "count_copies.c"), "-o", str(library)], check=True)
    channel = f"aeron:udp?endpoint=127.0.0.1:{free_port()}|mtu=8k|term-length=1m"
    arguments = (media_driver.settings.directory, channel)
    program = str(HERE / "bridge_copies.py")
    env = {"LD_PRELOAD": str(library)}
    receiver = processes.start(program, "receive", *arguments, env=env)
    receiver.wait_line("listening")
    sender = processes.start(program, "send", *arguments, env=env)
    for end in (sender, receiver):
        report = json.loads(end.wait_line("{", timeout=60))
        assert report["frames"] == 16
        assert 0.99 < report["copied"] / report["payload"] < 1.02  # copies of less than 1 KiB are not counted

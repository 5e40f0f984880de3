"""A program of another user: it becomes that user, tries what its orders say, and tells what came of each.

It has used a pool of its own before, so that everything is loaded: the interpreter's files may be for root alone.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import framepool as fp
from framepool.config import load
from framepool.transport import cnc


def attempt(what: Callable[[], Any]) -> Any:
    """What came of it, or the name of the error."""
    try:
        return what()
    except Exception as error:
        return type(error).__name__


def look_around() -> dict[str, str]:
    """Tries to read and to write every file and to list every directory that it can find."""
    found: dict[str, str] = {}
    for path in FILES:
        for mode in ("rb", "r+b"):
            try:
                with open(path, mode):
                    found[f"{mode} {path}"] = "opened"
            except OSError:
                pass
    for path in DIRECTORIES:
        try:
            os.listdir(path)
            found[f"ls {path}"] = "listed"
        except OSError:
            pass
    return found


def publish(config: Any) -> int:
    with fp.connect(config, timeout=patience) as pool, pool.producer(10_001, timeout=patience) as producer:
        return producer.publish(np.arange(6, dtype=np.uint16))


def consume(config: Any) -> list[int]:
    with fp.connect(config, timeout=patience) as pool, pool.consumer(10_000, timeout=patience) as consumer:
        frame = consumer.latest(timeout=20)
        return [] if frame is None else [int(each) for each in frame.copy()]


base, uid, gid, patience = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
FILES = [path for path in base.rglob("*") if path.is_file() and path.name != "site.toml"]
DIRECTORIES = [path for path in base.rglob("*") if path.is_dir()]
config = load(base / "site.toml", {})
with tempfile.TemporaryDirectory(dir="/dev/shm") as room:
    Path(f"{room}/site.toml").write_text(f'[aeron]\ndirectory = "{room}/aeron"\n[driver]\nshm_base_dir = "{room}"\n')
    warm = load(f"{room}/site.toml", {})
    with fp.serve(warm) as pool, pool.producer(10_000) as producer:
        producer.publish(np.arange(4))
        publish(warm)
        with pool.consumer(10_000) as consumer:
            while (frame := consumer.latest(timeout=0.01)) is None:
                producer.publish(np.arange(4))
            frame.copy()
    attempt(lambda: fp.connect(warm, timeout=0.1))
os.setgroups([])
os.setgid(gid)
os.setuid(uid)
print(
    json.dumps(
        {
            "found": look_around(),
            "counters": attempt(lambda: len(cnc.counters(config.aeron.directory)) > 0),
            "published": attempt(lambda: publish(config)),
            "consumed": attempt(lambda: consume(config)),
        }
    ),
    flush=True,
)

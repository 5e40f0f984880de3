"""Fuzzing with coverage guidance: `python -m tests.fuzz run TARGET --seconds 600`, `replay`, `keep`, `add`.

`run` hands a target to Atheris (libFuzzer, with the Python code of framepool instrumented) under a limit of memory and
of time for each input; an input that fails is left in `build/fuzz/TARGET/`. `keep` puts the inputs that reach the most
into the kept corpus, `add` puts one that failed there under a name. `replay` needs no Atheris: it runs everything that
is kept through its target, under the same limits, and is what the tests do.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import itertools
import json
import logging
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import CodeType, ModuleType

from tests.fuzz import corpus, places

TARGETS = ("messages", "values", "memory", "frames", "chunks", "settings", "segments", "manifest", "console", "fold")
WORK = Path("build/fuzz")
MEMORY_BYTES = 1 << 30
"""Of address space beyond what a target has once it has seen its seeds: an input that wants more fails."""
INPUT_SECONDS = 30
LONGEST_INPUT = 8_192
LONGEST_KEPT = 4_096
"""Bytes of an input in the project."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="fuzz one target, or all of them in turn")
    run.add_argument("target", choices=("all", *TARGETS))
    run.add_argument("--seconds", type=int, default=60)
    run.add_argument("--json", type=Path, default=WORK / "report.json", help="where the figures go")
    inner = commands.add_parser("_fuzz")
    inner.add_argument("target", choices=TARGETS)
    inner.add_argument("options", nargs="*")
    replay = commands.add_parser("replay", help="everything that is kept, through its target")
    replay.add_argument("target", nargs="?", choices=("all", *TARGETS), default="all")
    keep = commands.add_parser("keep", help="put what reaches the most into the kept corpus")
    keep.add_argument("target", choices=("all", *TARGETS))
    add = commands.add_parser("add", help="put an input that failed into the kept corpus")
    add.add_argument("target", choices=TARGETS)
    add.add_argument("name", help="what was wrong, in a few words with dashes")
    add.add_argument("file", type=Path)
    given = parser.parse_args()
    match given.command:
        case "run":
            return run_all(_chosen(given.target), given.seconds, given.json)
        case "_fuzz":
            return fuzz(given.target, given.options)
        case "replay":
            return replay_all(_chosen(given.target))
        case "keep":
            return keep_all(_chosen(given.target))
        case _:
            kept = corpus.read(given.target)
            corpus.write(given.target, {**kept, corpus.FOUND + given.name: given.file.read_bytes()})
            return 0


def _chosen(target: str) -> tuple[str, ...]:
    return TARGETS if target == "all" else (target,)


def run_all(targets: tuple[str, ...], seconds: int, report: Path) -> int:
    """Fuzzes each for so long, prints what came of it, and adds that to the report; how many failed."""
    failed = 0
    for target in targets:
        figures = _run(target, seconds)
        failed += figures["ended"] != "well"
        print(json.dumps(figures), flush=True)
        report.parent.mkdir(parents=True, exist_ok=True)
        with report.open("a") as file:
            file.write(json.dumps(figures) + "\n")
    return failed


def _run(target: str, seconds: int) -> dict[str, object]:
    place = WORK / target
    inputs = place / "inputs"
    inputs.mkdir(parents=True, exist_ok=True)
    for name, data in {**corpus.read(target), **corpus.named(_module(target).seeds())}.items():
        (inputs / name).write_bytes(data)
    began = time.monotonic()
    options = (f"-max_total_time={seconds}", f"-artifact_prefix={place}/", "-print_final_stats=1")
    code, said = _libfuzzer(target, [*options, str(inputs)])
    (place / "log.txt").write_text(said)
    last = re.findall(r"#(\d+)\s+\S+.*?cov: (\d+) ft: (\d+) corp: (\d+)", said)
    executions = re.search(r"stat::number_of_executed_units: (\d+)", said)
    found = sorted(path.name for path in place.iterdir() if path.name.split("-")[0] in ("crash", "timeout", "oom"))
    return {
        "target": target,
        "seconds": round(time.monotonic() - began),
        "executions": int(executions[1]) if executions else int(last[-1][0]) if last else 0,
        "coverage": int(last[-1][1]) if last else 0,
        "features": int(last[-1][2]) if last else 0,
        "corpus": int(last[-1][3]) if last else 0,
        "findings": len(found),
        "files": found,
        "ended": "well" if code == 0 else said.strip().splitlines()[-1] if not found else "at a finding",
    }


def _libfuzzer(target: str, options: list[str]) -> tuple[int, str]:
    """Runs Atheris in a process of its own, for it does not return: how it ended, and what it said."""
    common = (f"-max_len={LONGEST_INPUT}", f"-timeout={INPUT_SECONDS}", "-rss_limit_mb=0", "-verbosity=1")
    command = [sys.executable, "-m", "tests.fuzz", "_fuzz", target, "--", *common, *options]
    with tempfile.TemporaryDirectory(prefix="framepool-fuzz-", dir=places.SHM) as room:
        environment = {**os.environ, places.SCRATCH: room}
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, errors="replace")
    return done.returncode, done.stdout + done.stderr


def fuzz(target: str, options: list[str]) -> int:
    """In this process, from here to its end."""
    import atheris

    with atheris.instrument_imports(include=["framepool", "tomllib"], enable_loader_override=False):
        module = _module(target)
    _warm(module)
    limit_memory()
    atheris.Setup([target, *options], module.one)
    atheris.Fuzz()
    return 0


def _module(target: str) -> ModuleType:
    return importlib.import_module(f"tests.fuzz.{target}")


def _warm(module: ModuleType, step: int = 1) -> None:
    """Loads what is loaded when it is first needed: it is not the memory of an input."""
    logging.disable()
    for data in itertools.islice(module.seeds(), 0, None, step):
        module.one(data)


def limit_memory() -> None:
    """No more address space than there is now and `MEMORY_BYTES`: what an input makes grow fails with MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGESIZE") + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def replay_all(targets: tuple[str, ...]) -> int:
    """Prints how many inputs each target took; an input that fails ends it with a traceback and its name."""
    modules = {target: _module(target) for target in targets}
    for module in modules.values():
        _warm(module, step=8)
    limit_memory()
    for target, module in modules.items():
        inputs = corpus.read(target)
        for name, data in inputs.items():
            faulthandler.dump_traceback_later(INPUT_SECONDS, exit=True)
            try:
                module.one(data)
            except BaseException:
                print(f"{target}: {name} fails: {data!r}", file=sys.stderr)
                raise
            finally:
                faulthandler.cancel_dump_traceback_later()
        print(json.dumps({"target": target, "inputs": len(inputs)}), flush=True)
    return 0


def keep_all(targets: tuple[str, ...]) -> int:
    """Of all inputs, the shortest first, those that reach a line of framepool that none before did; and those that
    failed once."""
    for target in targets:
        module = _module(target)
        _warm(module)
        inputs = sorted((path.read_bytes() for path in (WORK / target / "inputs").iterdir()), key=len)
        failed = {name: data for name, data in corpus.read(target).items() if name.startswith(corpus.FOUND)}
        reached: set[tuple[str, int]] = set()
        kept = []
        for data in inputs:
            lines = _lines(module, data) if len(data) <= LONGEST_KEPT else set()
            if not lines <= reached:
                reached |= lines
                kept.append(data)
        corpus.write(target, {**corpus.named(kept), **failed})
        figures = {"target": target, "kept": len(kept), "of": len(inputs), "lines": len(reached)}
        print(json.dumps({**figures, "failed once": len(failed)}), flush=True)
    return 0


def _lines(module: ModuleType, data: bytes) -> set[tuple[str, int]]:
    """The lines of framepool that an input reaches."""
    monitoring, reached = sys.monitoring, set[tuple[str, int]]()

    def on_line(code: CodeType, line: int) -> object:
        if "/framepool/" in code.co_filename:
            reached.add((code.co_filename, line))
        return monitoring.DISABLE

    monitoring.use_tool_id(monitoring.COVERAGE_ID, "framepool fuzz")
    try:
        monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.LINE, on_line)
        monitoring.restart_events()
        monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.LINE)
        module.one(data)
    finally:
        monitoring.set_events(monitoring.COVERAGE_ID, 0)
        monitoring.free_tool_id(monitoring.COVERAGE_ID)
    return reached


if __name__ == "__main__":
    sys.exit(main())

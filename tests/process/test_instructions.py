"""What a frame costs, in instructions: unlike a time it does not depend on what else the machine does."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

WORKER = str(Path(__file__).parent / "instructions_worker.py")
COUNT = 1_000
NAMES = {
    "publish": r"__pyx_pw_\w*ProducerCore_\d+publish",
    "claim": r"__pyx_pw_\w*ProducerCore_\d+claim",
    "commit": r"__pyx_pw_\w*ClaimedSlot_\d+__exit__",
    "poll": r"__pyx_pw_\w*ConsumerCore_\d+poll",
    "enter": r"__pyx_pw_\w*Taken_\d+__enter__",
    "leave": r"__pyx_pw_\w*Taken_\d+__exit__",
}
"""The compiled functions that a call goes through."""
TURN = r"__pyx_f_\w*Ears_take_turn"
TAKERS = {"publish": NAMES["publish"], "commit": r"__pyx_f_\w*ClaimedSlot_finish_short", "poll": NAMES["poll"]}
"""Now and then a call takes a turn of the control plane: which one is a matter of time, and the cost is not its own."""
LIMITS = {"publish": 1_900, "claim": 1_450, "commit": 1_150, "poll": 4_100, "enter": 260, "leave": 130}
"""Instructions a call, a quarter over what they were when this was written; `docs/profile.md` shows where they go. A
poll hands over two frames."""


@pytest.mark.timeout(600)
@pytest.mark.requires("valgrind")
def test_frame_costs_no_more_instructions_than_it_did(base_dir: Path) -> None:
    counted = base_dir / "callgrind.out"
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={counted}", sys.executable, WORKER]
    done = subprocess.run(
        [*command, str(base_dir), str(COUNT)], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[1]) > 1.9 * COUNT, "nearly all came, or a poll costs less than it should"
    found = instructions(counted)
    print({name: round(each) for name, each in found.items()})
    for name, limit in LIMITS.items():
        assert found[name] < limit, f"{name}: {found[name]:.0f} instructions, at most {limit}"


def instructions(counted: Path) -> dict[str, float]:
    """Instructions a call of each function, with all that it calls but turns of the control plane."""
    names: dict[str, str] = {}
    calls: Counter[str] = Counter()
    costs: Counter[str] = Counter()
    turns: Counter[str] = Counter()
    lines = iter(counted.read_text().splitlines())
    for line in lines:
        if named := re.match(r"(c?)fn=(\(\d+\))(?: (.*))?", line):
            callee, number, name = named.groups()
            names.setdefault(number, name)
            if callee:
                called = names[number]
            else:
                caller = names[number]
        elif made := re.match(r"calls=(\d+)", line):
            cost = int(next(lines).split()[1])
            calls[called] += int(made[1])
            costs[called] += cost
            if re.fullmatch(TURN, called):
                turns[caller] += cost
    found = {}
    for name, pattern in NAMES.items():
        symbols = [symbol for symbol in calls if re.fullmatch(pattern, symbol)]
        assert symbols, f"{pattern} was never called"
        taken = sum(turns[taker] for taker in turns if re.fullmatch(TAKERS.get(name, ""), taker))
        found[name] = (sum(costs[symbol] for symbol in symbols) - taken) / sum(calls[symbol] for symbol in symbols)
    return found

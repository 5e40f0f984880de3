"""The commit protocol at every interleaving of every load and store, reordered as far as its fences allow.

What holds here holds for `_native/seqlock.h` as far as the model is that file: the last test compares the two.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from framepool import _native
from tests.model.seqlock_model import PLAIN, Reader, Torn, Writer, explore, mutants

HEADER = Path(_native.__file__).with_name("seqlock.h")


@pytest.mark.clause("W-8.3-06", "W-15.3-03")
@pytest.mark.parametrize("frames", [2, 3, 6])
def test_no_interleaving_and_no_reordering_has_a_torn_frame_accepted(frames: int) -> None:
    outcome = explore(Writer(frames=frames))
    assert outcome.torn == frozenset()
    assert outcome.accepted >= frames, "every frame can be read"
    assert outcome.dropped > 0
    assert outcome.states > 10 * frames**3


@pytest.mark.parametrize(
    ("flag", "writer", "reader"), list(mutants()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_each_step_that_is_left_out_lets_a_torn_frame_through(flag: str, writer: Writer, reader: Reader) -> None:
    outcome = explore(writer, reader)
    assert outcome.torn, flag


def test_without_its_second_look_a_reader_mixes_two_frames() -> None:
    """Not an artefact of reordering: the payload is of two frames in the plainest of interleavings."""
    torn = explore(Writer(frames=2), Reader(looks_again=False)).torn
    assert Torn(0, (0, 0, 1)) in torn
    assert Torn(0, (0, 1, 0)) in torn


def test_model_has_the_steps_of_the_compiled_one() -> None:
    """The order of loads, stores and fences on `seq_commit` in seqlock.h is that of the model."""
    text = HEADER.read_text()

    def steps(function: str) -> list[tuple[str, str]]:
        body = re.search(rf"{function}\(.*?\)\n{{(.*?)\n}}", text, re.DOTALL)
        assert body is not None, function
        found = re.findall(r"atomic_(store|load|thread_fence)\w*\(.*?memory_order_(\w+)\)", body[1])
        return [(kind.removeprefix("thread_"), order) for kind, order in found]

    writer = [
        ("fence" if place is None else "store", order)
        for place, _, order in Writer(frames=1).steps()
        if place not in PLAIN
    ]
    assert steps("fp_slot_begin") + steps("fp_slot_commit") == writer
    look, *_ = reader = [
        ("fence" if place is None else "load", order) for place, order in Reader().steps() if place not in PLAIN
    ]
    assert steps("fp_slot_look") == [look]
    assert [look, *steps("fp_slot_look_again") * 2] == reader

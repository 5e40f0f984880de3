"""The second check of the model, where a test can step between its two reads."""

from __future__ import annotations

import numpy as np
import pytest

from framepool.shm import slot as model
from framepool.shm.drop import DropReason
from framepool.shm.tensor import TensorLayout
from tests.support.slots import ModelSlots

IMAGE = TensorLayout.build(np.float32, (3, 4))
SEQ = 13
INDEX = SEQ % 8


@pytest.mark.clause("W-8.3-10")
def test_second_check_covers_the_header_copy_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wire 15.3: a slot that changes while its header is copied is late, never malformed."""
    slots = ModelSlots()
    slots.publish(SEQ, IMAGE)
    real = slots.ring.slot

    def overwritten_meanwhile(index: int) -> memoryview:
        slots.put(index, "seqCommit", (SEQ + 8) << 1)
        slots.put(index, "ndims", 0)
        return real(index)

    monkeypatch.setattr(slots.ring, "slot", overwritten_meanwhile)
    assert slots.check(SEQ) is DropReason.OVERWRITTEN
    monkeypatch.setattr(model, "still_committed", lambda ring, seq: True)
    slots.put(INDEX, "seqCommit", SEQ << 1 | 1)
    assert slots.check(SEQ) is DropReason.NDIMS

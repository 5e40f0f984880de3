"""The recorder's agent without a stream: what it owes is written before it says that it is accounted for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from framepool.client.pool import Pool
from framepool.recorder.account import AccountState, Loss, Reason
from framepool.recorder.capture import Capture
from framepool.recorder.recording import Recording
from framepool.recorder.recording_agent import RecordingAgent
from tests.support.tape import EPOCH, STREAM, Workshop


def test_rows_that_are_owed_are_in_the_segment_whose_end_accounts_for_them(tmp_path: Path) -> None:
    shop = Workshop(tmp_path / "rec")
    capture = Capture((), carried_bytes=0)
    agent = RecordingAgent(cast(Any, Pool), shop.log, shop.disk, shop.config, shop.clock, capture)
    shop.record(1)
    agent.keep({STREAM: AccountState({EPOCH: 3})})
    agent._owe([Loss(stream_id=STREAM, epoch=EPOCH, first_seq=1, last_seq=2, reason=Reason.GAP)])
    assert agent.roll()
    shop.turn()
    shop.kill()
    (row,) = Recording(tmp_path / "rec").losses()
    assert (row.loss.first_seq, row.loss.last_seq) == (1, 2)
    again = Workshop(tmp_path / "rec")
    assert again.begin.state == {STREAM: AccountState({EPOCH: 3})}
    again.kill()

"""Traces: which ids a derived frame gets, and what is told of it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framepool.client.trace import MAX_PARENTS, UNTRACED, Trace, new_trace_id
from framepool.wire._generated.trace_904 import TraceLinkSet

IDS = st.one_of(st.none(), st.integers(0, 5), st.integers(0, 2**64 - 1))


def frames(*trace_ids: int | None) -> list[Any]:
    return [SimpleNamespace(trace_id=each) for each in trace_ids]


def test_trace_begins_with_an_id_and_has_no_parents() -> None:
    assert Trace.of(42) == Trace(42)
    assert Trace.of(42).links(10_000, 1, 0) is None


@pytest.mark.parametrize("trace_ids", [(), (None,), (0,), (None, 0, None)])
def test_frame_of_untraced_parents_is_untraced(trace_ids: tuple[int | None, ...]) -> None:
    assert Trace.of(None, frames(*trace_ids)) is UNTRACED
    assert UNTRACED.links(10_000, 1, 0) is None


def test_zero_is_no_trace_id() -> None:
    assert Trace.of(0) is UNTRACED


def test_derived_frame_names_each_traced_parent_once_in_their_order() -> None:
    trace = Trace.of(None, frames(9, None, 3, 9, 0, 5))
    assert trace.parents == (9, 3, 5)
    links = trace.links(10_000, epoch=7, seq=11)
    assert links is not None
    assert (links.stream_id, links.epoch, links.seq, links.trace_id) == (10_000, 7, 11, trace.trace_id)
    assert [parent.trace_id for parent in links.parents] == [9, 3, 5]


def test_own_id_is_kept_and_is_no_parent() -> None:
    assert Trace.of(3, frames(3, 4)) == Trace(3, (4,))
    assert Trace.of(3, frames(3)).links(10_000, 1, 0) is None


def test_new_id_is_drawn_until_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    draws: Iterator[int] = iter([0, 8, 9, 10])
    monkeypatch.setattr(secrets, "randbits", lambda bits: next(draws))
    assert new_trace_id([8, 9]) == 10


def test_as_many_parents_as_fit_and_not_one_more() -> None:
    links = Trace.of(None, frames(*range(1, MAX_PARENTS + 1))).links(1, 1, 1)
    assert links is not None
    assert len(links.encode()) <= 8 * 1024, "the longest message on a term of 64 KiB"
    with pytest.raises(ValueError, match="at most"):
        Trace.of(None, frames(*range(1, MAX_PARENTS + 2)))


@given(own=IDS, parents=st.lists(IDS, max_size=8))
def test_whatever_is_told_can_be_read_and_keeps_the_rules(own: int | None, parents: list[int | None]) -> None:
    trace = Trace.of(own, frames(*parents))
    links = trace.links(10_000, 1, 2)
    expected = {each for each in parents if each and each != own}
    assert (links is None) == (not expected)
    if links is not None:
        told = [parent.trace_id for parent in links.parents]
        assert set(told) == expected
        assert len(told) == len(set(told))
        assert links.trace_id not in {0, *told}
        assert TraceLinkSet.decode(links.encode()) == links

"""How a producer finds the quickest way to copy long payloads."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framepool._native.frames import WAYS, CopyChoice

KIB, MIB = 2**10, 2**20
Costs = dict[str, int]


def frames(choice: CopyChoice, count: int, took: Callable[[str], int], nbytes: int = 512 * KIB) -> Counter[str]:
    """So many frames; how many went which way."""
    used: Counter[str] = Counter()

    def copy(way: str) -> int:
        used[way] += 1
        return took(way)

    for _ in range(count):
        choice.copy(nbytes, nbytes, copy)
    return used


def price(costs: Costs, way: str, nbytes: int) -> float:
    return costs[way] * (1.25 if way == "passing" and nbytes < 4 * MIB else 1.0)


class Caches:
    """A ring whose slots are in the cache or not: plain copies are quick only into those that are."""

    def __init__(self, slots: int, *, fits: bool) -> None:
        self.fits = fits
        self._near = [fits] * slots
        self._seq = 0

    def took(self, way: str) -> int:
        slot = self._seq % len(self._near)
        self._seq += 1
        near, self._near[slot] = self._near[slot] and self.fits, way != "passing"
        return 40_000 if way == "passing" else 20_000 if near else 70_000


@given(
    st.fixed_dictionaries({way: st.integers(1_000, 10**9) for way in WAYS}),
    st.integers(0, 7).map(lambda power: 2**power),
    st.integers(64 * KIB, 16 * MIB),
)
def test_it_ends_up_with_the_cheapest_or_one_that_is_hardly_dearer(costs: Costs, slots: int, nbytes: int) -> None:
    choice = CopyChoice(slots)
    frames(choice, 80 * (slots + 4), costs.__getitem__, nbytes)
    assert price(costs, choice.way, nbytes) <= min(price(costs, way, nbytes) for way in WAYS) * 16 / 15 + 2


@pytest.mark.parametrize("best", WAYS)
def test_interrupted_copies_do_not_deceive_it(best: str) -> None:
    share = 0.0
    for seed in range(20):
        chance = random.Random(seed)

        def took(way: str, chance: random.Random = chance) -> int:
            return (20_000 if way == best else 60_000) + (5_000_000 if chance.random() < 0.25 else 0)

        share += frames(CopyChoice(8), 20_000, took)[best] / 20_000 / 20
    assert share > 0.97


@pytest.mark.parametrize("slots", [1, 8, 64])
def test_a_ring_that_fits_into_the_cache_is_found_out_even_after_copies_that_passed_it(slots: int) -> None:
    choice, caches = CopyChoice(slots), Caches(slots, fits=False)
    frames(choice, 100 * slots + 200, caches.took)
    assert choice.way == "passing"
    caches.fits = True  # other streams ended
    frames(choice, 257 * (slots + 3) * 2 + 2_000, caches.took)
    assert choice.way != "passing"


def test_trials_become_rare() -> None:
    choice = CopyChoice(8)
    costs = {"plain": 20_000, "ahead": 30_000, "passing": 40_000, "string": 30_000}
    frames(choice, 50_000, costs.__getitem__)
    used = frames(choice, 100_000, costs.__getitem__)
    assert 0 < 100_000 - used["plain"] < 100_000 / 200


def test_frames_of_another_length_begin_anew() -> None:
    choice = CopyChoice(8)
    costs = {"plain": 60_000, "ahead": 60_000, "passing": 20_000, "string": 60_000}
    frames(choice, 1_000, costs.__getitem__)
    assert choice.way == "passing"
    assert frames(choice, 1, costs.__getitem__, 256 * KIB) == {"plain": 1}
    assert choice.nbytes == 256 * KIB
    assert not choice.trying


@pytest.mark.parametrize(
    ("nbytes", "slots", "way"),
    [(64 * KIB, 8, "plain"), (MIB, 16, "plain"), (MIB, 32, "passing"), (2 * MIB, 2, "plain"), (4 * MIB, 2, "passing")],
)
def test_what_it_does_before_it_has_tried_anything(nbytes: int, slots: int, way: str) -> None:
    assert frames(CopyChoice(slots), 1, lambda way: 1, nbytes) == {way: 1}


def test_only_what_is_compared_is_timed() -> None:
    choice = CopyChoice(8)
    wanted = 0

    def took(way: str) -> int:
        nonlocal wanted
        wanted += choice.timed
        return 1_000

    frames(choice, 16 + 4, took)
    assert wanted == 3 + 3, "three before the trial, three in it"

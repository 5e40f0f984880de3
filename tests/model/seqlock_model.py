"""The commit protocol of a slot on a machine that reorders whatever C11 lets it reorder, explored in full.

The machine is the usual one of views. Memory keeps every value that was stored at each place, in order. A thread has a
view: the oldest store of each place that it may still read. A load takes any store that is not older than that; a store
may carry a view along, which whoever reads it takes over:

- a release store carries all that its thread has seen or done; a relaxed one what that was at the last release fence;
- an acquire load takes over what it finds; a relaxed one does so only at the next acquire fence.

So a store that has not `reached` a reader yet and a load that was made `too early` are both a choice of an older value,
and all of them are tried, at every interleaving. For one writer that loads nothing and a reader that stores nothing, as
here, this is all that C11 allows (no value comes from a store that is yet to be decided upon). Bytes between the two
checks are plain: they are words of their own, loaded and stored relaxed, so that every way of tearing them is there.

`Writer` and `Reader` are `_native/seqlock.h` with what `seqlock.pyx` does between its steps; each flag that is turned
off is a bug that somebody could make.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Literal, NamedTuple

Order = Literal["relaxed", "acquire", "release"]
Place = Literal["word", "header", "payload 0", "payload 1"]
PLACES: tuple[Place, ...] = ("word", "header", "payload 0", "payload 1")
PLAIN = PLACES[1:]
View = tuple[int, ...]
"""For each place, the number of a store."""
NOTHING: View = (0,) * len(PLACES)


class Store(NamedTuple):
    """A step of the writer; a fence has no place."""

    place: Place | None
    value: int
    order: Order


class Message(NamedTuple):
    """A value in memory with what it carries along."""

    value: int
    carries: View


@dataclass(frozen=True)
class Writer:
    """How a producer writes frames 0, 1, … into the one slot of its ring."""

    frames: int = 3
    marks_in_progress: bool = True
    fences_the_mark: bool = True
    commits_with_release: bool = True
    commits_last: bool = True

    def steps(self) -> Iterator[Store]:
        for seq in range(self.frames):
            contents = [Store(place, seq, "relaxed") for place in reversed(PLAIN)]
            commit = Store("word", seq << 1 | 1, "release" if self.commits_with_release else "relaxed")
            if self.marks_in_progress:
                yield Store("word", seq << 1, "release")
            if self.fences_the_mark:
                yield Store(None, 0, "release")
            yield from (*contents, commit) if self.commits_last else (commit, *contents)


@dataclass(frozen=True)
class Reader:
    """How a consumer reads the frame that it was told of."""

    looks_first: bool = True
    looks_first_with_acquire: bool = True
    fences_before_the_second_look: bool = True
    looks_again: bool = True
    compares_the_sequence: bool = True

    def steps(self) -> list[tuple[Place | None, Order]]:
        """Loads and fences in their order; a fence has no place."""
        fence: list[tuple[Place | None, Order]] = [(None, "acquire")] if self.fences_before_the_second_look else []
        again: list[tuple[Place | None, Order]] = [*fence, ("word", "acquire")] if self.looks_again else []
        first: list[tuple[Place | None, Order]] = (
            [("word", "acquire" if self.looks_first_with_acquire else "relaxed")] if self.looks_first else []
        )
        return [*first, ("header", "relaxed"), *again, ("payload 0", "relaxed"), ("payload 1", "relaxed"), *again]

    def accepts(self, word: int, seq: int) -> bool:
        return bool(word & 1) and (word >> 1 == seq or not self.compares_the_sequence)


class Reading(NamedTuple):
    """A reader on its way."""

    step: int = 0
    view: View = NOTHING
    pending: View = NOTHING
    """What relaxed loads found, until a fence takes it over."""
    read: tuple[int, ...] = ()
    """Of header and payload, so far."""


class Torn(NamedTuple):
    """A frame that was accepted and is not whole."""

    seq: int
    read: tuple[int, ...]


class Outcome(NamedTuple):
    """What became of all readings at all interleavings."""

    accepted: int
    dropped: int
    torn: frozenset[Torn]
    states: int


def explore(writer: Writer | None = None, reader: Reader | None = None) -> Outcome:
    """Every interleaving of the writer with a reader of each of its frames, and every choice of every load."""
    memories = list(_memories(writer or Writer()))
    plan = (reader or Reader()).steps()
    accepted = dropped = states = 0
    torn: set[Torn] = set()
    for seq in range((writer or Writer()).frames):
        seen: set[tuple[int, Reading]] = set()
        waiting = [(written, Reading()) for written in range(len(memories))]
        while waiting:
            at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            written, reading = at
            if written + 1 < len(memories):
                waiting.append((written + 1, reading))
            if reading.step == len(plan):
                accepted += 1
                if any(value != seq for value in reading.read):
                    torn.add(Torn(seq, reading.read))
                continue
            for after in _advance(memories[written], plan[reading.step], reading):
                place, _ = plan[reading.step]
                if place == "word" and not (reader or Reader()).accepts(_loaded(memories[written], after), seq):
                    dropped += 1
                else:
                    waiting.append((written, after))
        states += len(seen)
    return Outcome(accepted, dropped, frozenset(torn), states)


Memory = dict[Place, tuple[Message, ...]]


def _memories(writer: Writer) -> Iterator[Memory]:
    """Memory after each of the writer's steps; the writer has no choice."""
    memory: Memory = {place: (Message(-1 if place != "word" else 0, NOTHING),) for place in PLACES}
    done, fenced = NOTHING, NOTHING
    yield memory
    for place, value, order in writer.steps():
        if place is None:
            fenced = done
        else:
            number, index = len(memory[place]), PLACES.index(place)
            done = _at(done, index, number)
            carried = done if order == "release" else _at(fenced, index, number)
            memory = {**memory, place: (*memory[place], Message(value, carried))}
        yield memory


def _advance(memory: Memory, step: tuple[Place | None, Order], reading: Reading) -> Iterator[Reading]:
    """The reader after its next step, for each store that it may find."""
    place, order = step
    if place is None:
        yield reading._replace(step=reading.step + 1, view=_join(reading.view, reading.pending))
        return
    index = PLACES.index(place)
    for number in range(reading.view[index], len(memory[place])):
        found = memory[place][number]
        pending = _join(reading.pending, found.carries)
        view = _at(reading.view, index, number)
        yield Reading(
            step=reading.step + 1,
            view=_join(view, found.carries) if order == "acquire" else view,
            pending=pending,
            read=reading.read if place == "word" else (*reading.read, found.value),
        )


def _loaded(memory: Memory, reading: Reading) -> int:
    """What the load of the word that was just made has found: the store that the view stands at."""
    return memory["word"][reading.view[PLACES.index("word")]].value


def _at(view: View, index: int, number: int) -> View:
    return (*view[:index], number, *view[index + 1 :])


def _join(one: View, other: View) -> View:
    return tuple(map(max, one, other))


def mutants() -> Iterator[tuple[str, Writer, Reader]]:
    """Each of the flags turned off, one at a time."""
    for each in (Writer(), Reader()):
        for flag in fields(each):
            if flag.type == "bool":
                changed = replace(each, **{flag.name: False})
                yield (
                    flag.name,
                    changed if isinstance(changed, Writer) else Writer(),
                    (changed if isinstance(changed, Reader) else Reader()),
                )

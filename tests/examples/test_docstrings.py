"""Every public name shows how it is used, and what it shows is run, each against a driver of its own.

The examples find a `pool`, its `camera`, an `eye` that has read the camera's first frame, an `image` and a `frame` with
that image, beside `np` and `fp`. What a class inherits from the compiled core has its example in the class itself.
"""

from __future__ import annotations

import contextlib
import doctest
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import framepool as fp
from tests.support.onlooker import first_frame, small_config, wait_until

STREAM = 10_000
CLASSES = ("Consumer", "Frame", "Pool", "Producer", "Slot", "Stream")
"""Whose methods and properties are shown one by one; of the others the class is."""
ALONE = {"framepool", "serve"}
"""What starts a driver itself."""
LIBRARIES = {"Frame.torch": "torch", "Frame.to_arrow": "pyarrow"}
CORE = {"checked", "finish", "forsake", "layout", "lookup", "read", "ring", "slot", "told_meta_version", "write_header"}
CORE |= {"writer"}
"""What classes of the core leave visible for the classes above them."""


def members(thing: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class documents."""
    for name, found in vars(thing).items():
        member = found.__func__ if isinstance(found, classmethod | staticmethod) else found
        if not name.startswith("_") and (inspect.isroutine(member) or isinstance(member, property)):
            yield name, member


def inherited(thing: type) -> set[str]:
    """The public names that a class has from the compiled core and does not document itself."""
    core = [base for base in thing.__mro__[1:] if base.__module__.startswith("framepool._native")]
    return {name for base in core for name in vars(base) if not name.startswith("_")} - CORE - set(vars(thing))


def public() -> Iterator[tuple[str, str]]:
    """Every public name with its docstring."""
    yield "framepool", inspect.getdoc(fp) or ""
    for name in fp.__all__:
        if name == "__version__":
            continue
        thing = getattr(fp, name)
        yield name, inspect.getdoc(thing) or ""
        for attribute, member in members(thing) if name in CLASSES else ():
            yield f"{name}.{attribute}", inspect.getdoc(member) or ""


DOCSTRINGS = dict(public())


@contextlib.contextmanager
def stage(base_dir: Path, monkeypatch: pytest.MonkeyPatch, *, alone: bool, discovers: bool) -> Iterator[dict[str, Any]]:
    """What the examples find; the environment leads `fp.connect()` to the same driver."""
    monkeypatch.setenv("FRAMEPOOL_AERON_DIRECTORY", str(base_dir / "aeron"))
    monkeypatch.setenv("FRAMEPOOL_DRIVER_SHM_BASE_DIR", str(base_dir))
    monkeypatch.chdir(base_dir)
    image = np.arange(12, dtype=np.uint16).reshape(3, 4)
    names: dict[str, Any] = {"fp": fp, "np": np, "image": image}
    if alone:
        yield names
        return
    with fp.serve(small_config(base_dir)) as pool:
        camera = pool.producer(STREAM, name="camera", tags=["lab:3"])
        eye = pool.consumer(STREAM)
        first_frame(camera, eye)
        camera.publish(image)
        if discovers:
            wait_until(lambda: pool.discover("camera", tags=["lab:3"]))
        yield {**names, "pool": pool, "camera": camera, "eye": eye, "frame": next(eye)}


@pytest.mark.parametrize("name", DOCSTRINGS)
def test_example_runs(name: str, base_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = DOCSTRINGS[name]
    assert "+SKIP" not in text, "an example that is not run is no example"
    assert ">>> " in text, f"{name} has no example"
    if name in LIBRARIES:
        pytest.importorskip(LIBRARIES[name])
    with stage(base_dir, monkeypatch, alone=name in ALONE, discovers=".discover(" in text) as names:
        test = doctest.DocTestParser().get_doctest(text, names, name, None, None)
        said: list[str] = []
        outcome = doctest.DocTestRunner(verbose=False).run(test, out=said.append, clear_globs=False)
        assert outcome.attempted
        assert not outcome.failed, "".join(said)


@pytest.mark.parametrize("name", CLASSES)
def test_class_shows_what_it_has_from_the_core(name: str) -> None:
    shown = set(re.findall(r"\.(\w+)", DOCSTRINGS[name]))
    assert inherited(getattr(fp, name)) <= shown

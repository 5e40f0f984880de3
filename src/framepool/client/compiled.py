"""Methods that are compiled but documented where people look for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast


def compiled[F: Callable[..., Any]](method: Callable[..., Any]) -> Callable[[F], F]:
    """Puts a compiled method in the place of one that has its signature and its documentation, and no body."""

    def take_place(documented: F) -> F:
        method.__doc__ = documented.__doc__
        return cast(F, method)

    return take_place

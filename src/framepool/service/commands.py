"""What a service can be told: commands and parameters, declared with the types of their values.

A command is a method; the annotation of its one argument, if it has one, is the type of the value, and
`Annotated[int, msgspec.Meta(ge=1, le=100)]` or `Literal["a", "b"]` says which values. A parameter is a value of the
service that `set:<name>` changes. Both describe themselves, so that a console can draw them.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any, Final, Self, overload

import msgspec

from framepool.errors import CommandRefused
from framepool.wire.values import Value

SET: Final = "set:"
"""Before the name of a parameter: the key of the command that sets it."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a service can be told."""

    key: str
    method: str
    """That is called; "" of one that sets a parameter."""
    help: str = ""
    kind: Any = None
    """The type of the value; None where there is none."""
    optional: bool = False
    secret: bool = False
    """Whether the value is a secret, which is not repeated in the echo."""

    def arguments(self, value: Value) -> tuple[Any, ...]:
        """What to call the method with; `CommandRefused` if the value is not of the type."""
        if self.kind is None:
            if value is not None:
                raise CommandRefused(f"{self.key} takes no value")
            return ()
        if value is None and self.optional:
            return ()
        return (converted(self.key, value, self.kind),)

    def describe(self) -> dict[str, Any]:
        """For a console: key, help and the JSON schema of the value."""
        schema = None if self.kind is None else msgspec.json.schema(self.kind)
        return {"key": self.key, "help": self.help, "value": schema, "optional": self.optional}


@overload
def command[**P, R](method: Callable[P, R]) -> Callable[P, R]: ...
@overload
def command[**P, R](*, key: str | None = None, secret: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def command(method: Any = None, *, key: str | None = None, secret: bool = False) -> Any:
    """Declares a method to be a command; its name is the key unless one is given.

    The method may raise `CommandRefused`. What it returns is sent as the result: a value, or what JSON can say.
    """

    def declared(function: Any) -> Any:
        function.__command__ = (key or function.__name__, secret)
        return function

    return declared if method is None else declared(method)


class Parameter[T]:
    """A value of a service that can be set from outside.

    ::

        class Limiter(Service):
            rate = Parameter(Annotated[int, msgspec.Meta(ge=0)], 25, "Frames a second.")

    Reads and writes like an attribute; what is written is checked.
    """

    def __init__(self, kind: Any, default: T, help: str = "") -> None:
        self.kind = kind
        self.default: T = converted("default", default, kind)
        self.help = help
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, service: None, owner: type) -> Self: ...
    @overload
    def __get__(self, service: object, owner: type) -> T: ...
    def __get__(self, service: object | None, owner: type) -> Self | T:
        if service is None:
            return self
        value: T = service.__dict__.get(self.name, self.default)
        return value

    def __set__(self, service: object, value: T) -> None:
        service.__dict__[self.name] = converted(self.name, value, self.kind)

    @property
    def command(self) -> Command:
        """What sets it."""
        return Command(key=SET + self.name, method="", help=self.help, kind=self.kind)


def commands_of(service: type) -> dict[str, Command]:
    """The commands that a class declares, by key; a subclass has the last word on each."""
    found: dict[str, Command] = {}
    for owner in reversed(service.__mro__):
        for name, member in vars(owner).items():
            if isinstance(member, Parameter):
                found[member.command.key] = member.command
            elif declared := getattr(member, "__command__", None):
                found[declared[0]] = _command_of(member, name, *declared)
    return found


def parameters_of(service: type) -> dict[str, Parameter[Any]]:
    """The parameters of a class, by name."""
    members = {name: member for owner in reversed(service.__mro__) for name, member in vars(owner).items()}
    return {name: member for name, member in members.items() if isinstance(member, Parameter)}


def converted(key: str, value: Any, kind: Any) -> Any:
    """The value as this type has it; `CommandRefused` if it has none such."""
    try:
        return msgspec.convert(value, kind, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise CommandRefused(f"{key}: {error}") from None


def _command_of(function: Callable[..., Any], name: str, key: str, secret: bool) -> Command:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    if len(parameters) > 1:
        raise TypeError(f"{function.__qualname__}: a command has one value at the most")
    kind, optional = None, False
    if parameters:
        kind = typing.get_type_hints(function, include_extras=True)[parameters[0].name]
        optional = parameters[0].default is not inspect.Parameter.empty
    doc = inspect.getdoc(function) or ""
    return Command(key=key, method=name, help=doc.split("\n\n")[0], kind=kind, optional=optional, secret=secret)

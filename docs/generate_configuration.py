"""Writes docs/configuration.md from the structs of `framepool.config`: every key, its type, default and meaning."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path
from typing import Any

import msgspec

from framepool import config
from framepool.transport.settings import AeronSettings

PAGE = Path(__file__).with_name("configuration.md")
INTRODUCTION = """# Configuration

Written by `make docs` from `framepool.config`. A TOML file, named with `--config`; everything has a default and no file
is needed. Unknown keys are refused; `framepool config check FILE` says what is wrong and where, `framepool config show`
what is in force. A scalar can be overridden by the environment variable of its row.

```toml
[driver]
namespace = "lab1"

[profiles.camera]
nslots = 32
pools = [{ pool_id = 1, stride_bytes = 8_388_608 }]

[[streams]]
stream_id = 10_000
profile = "camera"
```
"""
TABLES: tuple[tuple[str, type[msgspec.Struct]], ...] = (
    ("[driver]", config.DriverConfig),
    ("[driver.limits]", config.Limits),
    ("[client]", config.ClientConfig),
    ("[discovery]", config.DiscoveryConfig),
    ("[[discovery.access]]", config.AccessRule),
    ("[discovery.limits]", config.DiscoveryLimits),
    ("[discovery.responses]", config.ResponseConfig),
    ("[registry]", config.RegistryConfig),
    ("[[registry.sources]]", config.SourceConfig),
    ("[supervisor]", config.SupervisorConfig),
    ("[supervisor.limits]", config.SupervisorLimits),
    ("[[supervisor.rules]]", config.SupervisorRule),
    ("[[streams]]", config.StreamConfig),
    ("[profiles.NAME]", config.ProfileConfig),
    ("[[profiles.NAME.pools]]", config.PoolConfig),
    ("[stream_ids]", config.StreamIds),
    ("[channels]", config.Channels),
    ("[service]", config.ServiceConfig),
    ("[console]", config.ConsoleConfig),
    ("[recorder]", config.RecorderConfig),
    ("[bridge]", config.BridgeConfig),
    ("[[mappings]]", config.MappingConfig),
    ("[bridge.links.NAME]", config.LinkConfig),
    ("[bridges.NAME]", config.LinkConfig),
    ("[aeron]", AeronSettings),
)


def meanings(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The docstring below each field, inherited ones included."""
    found = {}
    for base in struct.__mro__:
        if not base.__module__.startswith("framepool."):
            continue
        body = ast.parse(inspect.getsource(base)).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, following in zip(body.body, body.body[1:], strict=False):
            match statement, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
    return found


def rows(struct: type[msgspec.Struct]) -> list[str]:
    variables = {keys[-1]: name for name, keys, _ in config.variables() if _belongs(struct, keys)}
    documented = meanings(struct)
    lines = ["| key | default | meaning |", "| --- | --- | --- |"]
    for field in msgspec.structs.fields(struct):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            continue
        default = "required" if field.required else f"`{_toml(field.default)}`"
        if field.default is None or field.default_factory is dict:
            default = "none"
        elif field.default_factory is not msgspec.NODEFAULT:
            default = "worked out"
        variable = f"<br>`{variables[field.name]}`" if field.name in variables else ""
        lines.append(f"| `{field.name}`{variable} | {default} | {documented[field.name]} |")
    return lines


def _belongs(struct: type[msgspec.Struct], keys: tuple[str, ...]) -> bool:
    at: Any = config.Config
    for key in keys[:-1]:
        at = next(field.type for field in msgspec.structs.fields(at) if field.name == key)
    return bool(at is struct)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def page() -> str:
    parts = [INTRODUCTION]
    for table, struct in TABLES:
        about = (inspect.getdoc(struct) or "").split("\n\n")[0].replace("\n", " ")
        parts.append("\n".join([f"## `{table}`", "", about, "", *rows(struct), ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text() != text)
    PAGE.write_text(text)

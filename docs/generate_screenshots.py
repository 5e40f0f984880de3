"""Writes docs/console*.png and docs/console-stream.jpg: the console as it looks while `framepool demo` runs.

Without Chromium the pictures stay as they are.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parent
SIZE = {"width": 1320, "height": 640}
LOW = 330
"""Of a view with few rows."""
SETTLE_MS = 12_000
"""For the charts to have something to show."""


def main() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        print("the pictures stay as they are: install the package chromium to take them anew")
        return
    demo = subprocess.Popen(
        [sys.executable, "-m", "framepool", "demo", "--headless"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert demo.stdout is not None
        address = next(line.split()[1] for line in demo.stdout if line.startswith("console "))
        take(chromium, address)
    finally:
        demo.terminate()
        demo.communicate(timeout=30)


def take(chromium: str, address: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=60_000)
        page = browser.new_page(viewport=SIZE, color_scheme="dark")
        page.set_default_timeout(60_000)
        page.goto(address)
        page.wait_for_function("() => document.querySelectorAll('.card.pictured').length === 3")
        page.wait_for_timeout(SETTLE_MS)
        page.screenshot(path=DOCS / "console.png")
        page.evaluate("location.hash = '#/stream/10000'")
        page.get_by_label("Colours").select_option("inferno")
        page.get_by_label("Scale").select_option("root")
        page.wait_for_timeout(SETTLE_MS // 4)
        page.screenshot(path=DOCS / "console-stream.jpg", quality=82)
        page.set_viewport_size({**SIZE, "height": LOW})
        page.evaluate("location.hash = '#/recordings'")
        page.wait_for_function("() => document.querySelectorAll('#recordings tbody tr').length > 0")
        page.wait_for_timeout(SETTLE_MS // 4)
        page.screenshot(path=DOCS / "console-recordings.png")
        browser.close()


if __name__ == "__main__":
    main()

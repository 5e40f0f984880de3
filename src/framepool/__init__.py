"""Zero-copy shared-memory tensor transport.

>>> import framepool as fp
>>> with fp.serve() as driver:                     # doctest: +SKIP
...     driver.statistics()["streams"]
[]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from framepool.config import Config
    from framepool.driver.driver import ShmDriver

__version__ = "0.1.0"
__all__ = ["__version__", "serve"]


def serve(config: Config | None = None) -> ShmDriver:
    """Starts a shared-memory driver inside this process, with its media driver, and serves on a thread of its own.

    Close it, or use it in a `with` statement. It is the same driver as `framepool driver` (Driver 2.1). Without a
    configuration the defaults apply, with what the environment overrides.
    """
    from framepool.config import load
    from framepool.driver.driver import ShmDriver

    return ShmDriver(load() if config is None else config).start()

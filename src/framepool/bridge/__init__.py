"""The UDP bridge: the same stream on another host (Bridge specification).

`framepool.bridge(config)` starts one; the module is callable for that, and loads what it needs when it is first used.

>>> from pathlib import Path
>>> from framepool.config import load
>>> size = Path("bridge.toml").write_text('''
... [bridge]
... instance_id = "here"
... payload_channel = "aeron:udp?endpoint=127.0.0.1:40300"
... payload_stream_id = 3000
... control_channel = "aeron:udp?endpoint=127.0.0.1:40301"
... control_stream_id = 3001
... [[mappings]]
... source_stream_id = 10_000
... dest_stream_id = 50_000
... ''')
>>> with fp.bridge(load("bridge.toml")) as sender:
...     [mapping["dest_stream_id"] for mapping in sender.statistics()["mappings"]]
[50000]
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framepool.bridge.bridge import Bridge
    from framepool.config import Config


def __getattr__(name: str) -> Any:
    if name == "Bridge":
        return importlib.import_module("framepool.bridge.bridge").Bridge
    raise AttributeError(f"module 'framepool.bridge' has no attribute {name!r}")


class _Room(types.ModuleType):
    def __call__(self, config: Config | None = None) -> Bridge:
        """Starts the bridge of a configuration, by default that of the environment; close it, or use it in `with`."""
        from framepool.bridge.bridge import Bridge
        from framepool.config import load

        return Bridge(load() if config is None else config).start()


sys.modules[__name__].__class__ = _Room

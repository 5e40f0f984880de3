"""Real processes for tests: the package's own, which others need too."""

from __future__ import annotations

from framepool.testing.processes import Process, Processes

__all__ = ["Process", "Processes"]

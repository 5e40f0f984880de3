"""Hosts for tests: the package's own, which others need too."""

from __future__ import annotations

from framepool.testing.hosts import DAY, GROUP, MTU, Host, Hosts, MakeHosts, make_hosts, missing

__all__ = ["DAY", "GROUP", "MTU", "Host", "Hosts", "MakeHosts", "make_hosts", "missing"]

"""The service control plane: how often services say how they are, and how long a command waits (Service 4, 6)."""

from __future__ import annotations

from framepool.config.section import Positive, Section


class ServiceConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Services and those who command them; their streams are in `stream_ids` and `channels`."""

    status_period_ms: Positive = 1_000
    """How often a service says its state on the status stream; changes are told at once."""
    command_timeout_ms: Positive = 5_000
    """How long a command waits for its echo."""

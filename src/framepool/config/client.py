"""Producers and consumers: how often they say how they fare and what they are (Wire 15.11)."""

from __future__ import annotations

from framepool.config.section import Positive, Section


class ClientConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Producers and consumers of the programs that use this file."""

    qos_period_ms: Positive = 1_000
    """How often each of them sends its QoS report."""
    metadata_period_ms: Positive = 1_000
    """How often a producer repeats what its stream is called and its attributes; changes are told at once."""

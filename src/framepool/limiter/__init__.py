"""Fewer frames for those who look: a stream republished at a lower rate, as a service."""

from framepool.limiter.limiter import Limiter

__all__ = ["Limiter"]

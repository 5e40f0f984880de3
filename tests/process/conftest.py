"""What most tests of whole programs need; a module may have its own instead."""

from tests.support.served import config, onlooker, pool

__all__ = ["config", "onlooker", "pool"]

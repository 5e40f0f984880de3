"""Zero-copy shared-memory tensor transport."""

__version__ = "0.1.0"

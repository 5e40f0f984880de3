"""Numbers of the layout that no schema can say: Wire 7.1, 8.2, 14 and decisions.md section 0.

The compiled core gets the same numbers through the generated `_native/layout.h`.
"""

from __future__ import annotations

from typing import Final

SUPERBLOCK_MAGIC: Final = 0x544F504C53484D31
"""Stored little-endian; the number counts, not the text it spells (decisions.md #1)."""

LAYOUT_VERSION: Final = 1
SUPERBLOCK_SIZE: Final = 64
HEADER_SLOT_BYTES: Final = 256
MAX_DIMS: Final = 8

MESSAGE_HEADER_BYTES: Final = 8
GROUP_HEADER_BYTES: Final = 4
DATA_LENGTH_BYTES: Final = 4
HEADER_BYTES_OFFSET: Final = 60
"""Where in a header slot the length of the embedded TensorHeader stands (Wire 8.2)."""

TENSOR_HEADER_OFFSET: Final = 64
TENSOR_HEADER_BYTES: Final = 192

"""What is shared: files, the regions mapped from them, and the slots inside (Wire 3 to 9, 15.21a, 15.22).

The way of a region: `uri` reads its name, `paths` opens the file it names or refuses, `superblock` compares what
the file says of itself with the announce, `region` maps it. `layout` holds the announced numbers, `tree`,
`allocator` and `epochs` make the files. `ring`, `pool` and `tensor` are what is inside. Nothing here knows of
Aeron.
"""

from __future__ import annotations

import sys

from framepool.errors import RegionError


def require_little_endian(byteorder: str = sys.byteorder) -> None:
    """Refuses a big-endian host: every region is little-endian and is read in place (Wire 6, 15.1)."""
    if byteorder != "little":
        raise RegionError(f"framepool shares memory in little-endian order and cannot run on a {byteorder}-endian host")


require_little_endian()

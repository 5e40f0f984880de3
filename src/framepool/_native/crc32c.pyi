from collections.abc import Buffer
from typing import Final

IMPLEMENTATION: Final[str]

def crc32c(data: Buffer, crc: int = 0) -> int: ...
def crc32c_portable(data: Buffer, crc: int = 0) -> int: ...

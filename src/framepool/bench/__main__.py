"""One process of a measurement; `framepool bench` starts them."""

from __future__ import annotations

import sys

import msgspec

from framepool.bench.measure import Task, main

if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1].encode(), type=Task))

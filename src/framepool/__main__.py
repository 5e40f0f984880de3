"""`python -m framepool`, the same as the `framepool` command."""

from framepool.cli import main

main()

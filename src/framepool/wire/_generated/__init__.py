"""One module per schema of `schemas/`, written by `python -m framepool.wire.codegen`. Do not edit by hand."""

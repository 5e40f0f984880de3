"""What is said: every message of the five specifications, from the XML in `schemas/` to Python and back.

`codegen` writes `_generated/` and the C header of the compiled core from the schemas; `message` and `cursor`
are what generated code stands on; `dispatch` is the gate every received buffer passes; `describe` turns
messages into plain dictionaries and back. Nothing here knows Aeron or shared memory.
"""

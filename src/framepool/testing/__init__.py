"""Tests of what was built on framepool: journals and their checker, hosts and processes, faults on purpose.

`journal` is what each process of a test writes, `history` says whether it may have happened, `members` are producers
and consumers that keep a journal, and `torture` is the whole of it: a cluster and a nemesis.
"""

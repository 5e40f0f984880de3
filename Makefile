# Two commands to start: `make demo` and `make test`. Every target sets up what it needs by itself.
SHELL := /bin/bash
VENV := .venv
PY := $(VENV)/bin/python
NATIVE := $(wildcard $(addprefix src/framepool/_native/*.,pyx pxd pxi h))
PYTEST := $(PY) -m pytest

.PHONY: help setup demo test check format conformance bench faults hard soak fuzz docs lock generate clean

help:           ## this list
	@grep -hE '^[a-z]+: .*##|^[a-z]+:  *##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 14

setup: $(VENV)/.built  ## make .venv with pinned dependencies and the compiled core

$(VENV)/.deps: requirements/dev.lock
	@python=$$(tools/find-python) || exit 1; \
	test -x $(PY) && $(PY) -c '' 2>/dev/null || $$python -m venv --clear $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	@touch $@

$(VENV)/.built: $(VENV)/.deps pyproject.toml setup.py $(NATIVE)
	$(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $@

demo: setup     ## live streams, readers of every kind and the web console, in a place of their own
	@$(VENV)/bin/framepool demo

test: setup     ## all tests but the soak ones, two files at a time: most of them wait for processes
	$(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder -m "not soak" $(ARGS)

check: setup    ## format, lint and types
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

format: setup   ## rewrite the sources as `make check` wants them
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

conformance: setup  ## which clauses of the specifications a passing test shows
	$(PYTEST) -m "clause and not soak" --conformance -q $(ARGS)

bench: setup    ## ratios against a peer or the machine itself, in one run
	$(PY) -m benchmarks $(ARGS)

faults: setup   ## two minutes of torture: real processes, faults by a seed, and a checker that decides
	$(PYTEST) -m soak tests/faults/test_torture.py -k "caught or minute" -q
	@mkdir -p build
	$(VENV)/bin/framepool torture --minutes $(or $(MINUTES),2) --seed $(or $(SEED),1) --json build/torture.json --report build/torture.md

soak: setup     ## what takes over a minute or over 2 GiB
	$(PYTEST) -m soak --timeout 3600 $(ARGS)

hard: setup     ## all tests on a machine that seems just started, is busy, and stops processes now and then (root)
	tools/hard-times --busy $(or $(BUSY),1) --pause $(or $(PAUSE),1) --seed $(or $(SEED),1) $(MAKE) test

fuzz: setup     ## decoders and parsers under Atheris: make fuzz SECONDS=600 TARGET=messages; all for a minute each
	$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/fuzz.lock
	$(PY) -m tests.fuzz run $(or $(TARGET),all) --seconds $(or $(SECONDS),60)

docs: setup     ## the manual, into docs/_build/html
	$(PY) docs/generate_configuration.py
	$(PY) docs/generate_screenshots.py
	$(PY) -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

generate: setup ## the message classes, from schemas/*.xml
	$(PY) -m framepool.wire.codegen

lock:           ## requirements/*.lock from pyproject.toml (needs uv)
	tools/lock

clean:          ## everything that can be made again
	rm -rf $(VENV) build dist docs/_build .hypothesis .mypy_cache .ruff_cache .pytest_cache src/*.egg-info
	rm -f src/framepool/_native/*.so src/framepool/_native/*.c
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

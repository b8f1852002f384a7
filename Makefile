# `make check` before each commit, `make test` for proof, `make demo` to see it. ARGS go through: make test ARGS="-k scrub"
.DEFAULT_GOAL := help
.PHONY: help setup demo check test test-all lint docs bench hard lock clean

help:  ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s  %s\n", $$1, $$2 }' Makefile

setup:  ## .venv/bin/coatcheck from requirements.lock, and the Debian packages that the tests need
	@scripts/setup

demo: setup  ## the main job on real input, six attacks, a redirect, a real agent in a microVM
	@.venv/bin/python -m demo $(ARGS)

check: lint  ## before each commit: lint, types, and all tests that need no daemon; under 3 minutes on 2 cores
	@scripts/test check $(ARGS)

test: setup  ## the proof that it works: every capability once through real components; under 10 minutes on 2 cores
	@scripts/test test $(ARGS)

test-all: setup  ## everything: also each fault, each kill, each check switched off, whole packages; CI runs this
	@scripts/test all $(ARGS)

lint: setup  ## ruff, formatting, types, which module may import which, and that what is imported is declared
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-logo
	@.venv/bin/deptry proxy

docs: setup  ## docs/reference, the schemas and the tables in documents, from the code
	@.venv/bin/python scripts/reference $(ARGS)

bench: setup  ## side by side with stock mitmdump, a bare embedded Master, and a bare QEMU
	@.venv/bin/python -m tests.bench $(ARGS)
	@.venv/bin/python -m tests.bench.sandbox
	@.venv/bin/python -m tests.bench.durable
	@.venv/bin/python -m tests.bench.database

hard: setup  ## the long searches: fuzzing, mutants, kills, soak; results in docs/hard (ARGS="fuzz --minutes 30")
	@.venv/bin/python -m tests.hard $(ARGS)

lock: setup  ## requirements.lock from pyproject.toml (ARGS=--upgrade for newer releases)
	@scripts/lock $(ARGS)

clean:  ## remove what setup, tests and linters made
	rm -rf .venv var .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

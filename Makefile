# `make demo` and `make test` are all that a fresh machine needs: they create .venv first.

PYTHON ?=
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -le 4 ] && echo $$n || echo 4)

RUN := .venv/bin/python
PYTEST := $(RUN) -m pytest -n $(WORKERS) --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-quick test-slow lint format bench clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

setup:  ## create .venv from requirements.lock (the targets below do it themselves)
	@PYTHON='$(PYTHON)' .ci/setup

demo: setup  ## pre-train, fine-tune, export and serve a small model; writes runs/demo/report.html
	@$(RUN) -m pipelines.demo

test: setup  ## all tests but the slow ones
	@$(PYTEST) -m "not slow" --durations 10

test-quick: setup  ## the tests that start no other processes, in less than 5 minutes
	@$(PYTEST) -m "not slow and not process"

test-slow: setup  ## the slow tests
	@$(PYTEST) -m slow --durations 10

lint: setup  ## check style and formatting
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .

format: setup  ## repair what `make lint` can repair
	@$(RUN) -m ruff check --fix .
	@$(RUN) -m ruff format .

bench: setup  ## run every benchmark of tests/benchmarks
	@set -e; for file in tests/benchmarks/bench_*.py; do \
	  echo "$$file"; $(RUN) -m "tests.benchmarks.$$(basename "$$file" .py)"; done

clean:  ## remove caches and build products; .venv and runs/ stay
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache
	find custom_ops vit_tf pipelines tests -type d -name __pycache__ -prune -exec rm -rf {} +

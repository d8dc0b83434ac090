# Everything a new machine needs: `make run`, `make test`. `make help` lists the rest.
PYTHON ?= python3
BIN := .venv/bin
# Tests start Ray, and kill and wait for processes: two at a time keep two cores busy.
WORKERS ?= 2
# A file each, in their order: sorted by their number of tests, the few that kill runs for minutes would come last.
PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Small products gain nothing from a second thread, which would wait for the other worker.
export OPENBLAS_NUM_THREADS ?= 1
# Each process that a test starts would compile all files anew.
unexport PYTHONDONTWRITEBYTECODE
# Every case above 3 s is listed at the end.
DURATIONS = --durations=40 --durations-min=3

.PHONY: help run test test-all test-adapters lint mutants docs clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

run: .venv/installed ## run the quickstart; the last line makes shoal a command
	$(BIN)/shoal run configs/quickstart.yaml
	@echo 'in this shell, shoal is a command after:'
	@echo 'source .venv/bin/activate'

test: .venv/installed-test ## every test that is not marked slow, a tenth of the exhaustive ones
	$(BIN)/python -m pytest -m "not slow" $(PARALLEL) $(DURATIONS)

test-all: .venv/installed-test ## all tests
	$(BIN)/python -m pytest --exhaustive $(PARALLEL)

# torch-sparse has no build for this torch: its 32 files are compiled one after another, each for about a minute of a
# processor, torch's headers most of it. On two busy cores that was never seen to its end.
test-adapters: ## adapters beside DGL, in a minute; then beside torch-sparse, compiled from source in half an hour or more
	$(PYTHON) -m venv .venv-adapters
	.venv-adapters/bin/pip install --quiet --editable '.[test]' ninja wheel
	.venv-adapters/bin/python -m pytest tests/storage/adapters
	CFLAGS=-g0 FORCE_ONLY_CPU=1 .venv-adapters/bin/pip install --verbose --no-build-isolation torch-scatter==2.1.2 torch-sparse==0.6.18
	.venv-adapters/bin/python -m pytest tests/storage/adapters/test_torch_sparse.py

lint: .venv/installed-test ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

mutants: .venv/installed-mutants ## changes of a file that no test notices: FILE=algorithms/methods/fedgta/fedgta.py [TESTS="more tests"] [SAMPLE=100]
	$(BIN)/python tests/mutation/survivors.py $(FILE) $(TESTS) $(if $(SAMPLE),--sample $(SAMPLE))

docs: .venv/installed-docs ## the documentation site, in site/; with Chromium also its pictures of pages, in a minute or two
	$(BIN)/mkdocs build --strict

clean: ## remove the virtual environment and caches
	rm -rf .venv .venv-adapters build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml
	$(BIN)/pip install --quiet --editable .
	@touch $@

.venv/installed-test: .venv/bin/python pyproject.toml
	$(BIN)/pip install --quiet --editable '.[test]'
	@touch $@ .venv/installed

.venv/installed-mutants: .venv/bin/python pyproject.toml
	$(BIN)/pip install --quiet --editable '.[test,mutants]'
	@touch $@ .venv/installed .venv/installed-test

.venv/installed-docs: .venv/bin/python pyproject.toml
	$(BIN)/pip install --quiet --editable '.[docs]'
	@touch $@ .venv/installed

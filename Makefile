# Every target does its own set-up on a machine that has only python3, pip and make. A second run is quick: packages
# are installed again only when pyproject.toml or constraints.txt changed.
#   make demo ARGS=--once     make scenes SHORT=1     make test PYTEST=-x

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
COMPILED ?= .venv-compiled
ARGS ?=
PYTEST ?=
SHORT ?=
BIN := $(VENV)/bin

# Debian's python3 comes without ensurepip: the environment is made without pip, and python3's own pip fills it.
PIP_INSTALL = install --quiet --disable-pip-version-check --constraint constraints.txt
INSTALL = STEELYARD_COMPILE=0 $(PYTHON) -m pip --python $(BIN)/python $(PIP_INSTALL)

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "steelyard needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv --without-pip $(VENV)

$(VENV)/base: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) --editable .
	@touch $@

$(VENV)/dev: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/base

# Steelyard as a wheel gives it: compiled where there is a C compiler and Python's headers, else pure Python.
$(COMPILED)/dev: pyproject.toml constraints.txt hatch_build.py $(shell find src -name '*.py')
	@test -x $(COMPILED)/bin/python || $(PYTHON) -m venv --without-pip $(COMPILED)
	@echo "Building the wheel, compiled where there is a C compiler; this takes a minute or two"
	$(PYTHON) -m pip --python $(COMPILED)/bin/python $(PIP_INSTALL) '.[dev]'
	@touch $@

.PHONY: demo
demo: $(VENV)/base ## Gateway, emulated GPU fleet and load on this machine (ARGS=--once to end by itself)
	@$(BIN)/steelyard demo $(ARGS)

.PHONY: test
test: lint ## Everything that must hold: lint, types, rings, docs, tests, coverage of the core
	$(BIN)/coverage erase
	$(BIN)/python -m pytest -q -n 2 tests/core --cov --cov-report= $(PYTEST)
	$(BIN)/coverage report --include='src/steelyard/core/*' --fail-under=100
	$(BIN)/python -m pytest -q -n 2 --ignore=tests/core --ignore=tests/real $(PYTEST)

.PHONY: test-compiled
test-compiled: $(COMPILED)/dev ## The core's, the dialects', the proxy's and the black-box tests on the compiled data path
	@$(COMPILED)/bin/steelyard version | grep compiled
	$(COMPILED)/bin/python -m pytest -q -n 2 -o pythonpath=. tests/test_imports.py tests/core tests/dialects tests/proxy tests/blackbox $(PYTEST)

.PHONY: lint
lint: $(VENV)/dev ## Style, types, the rings, generated documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m steelyard.config.reference --check docs/configuration.md
	$(BIN)/python -m steelyard.admin.reference --check docs/metrics.md

.PHONY: fmt
fmt: $(VENV)/dev ## Format, and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: docs
docs: $(VENV)/dev ## Write the documents that are generated from the code
	$(BIN)/python -m steelyard.config.reference --write docs/configuration.md
	$(BIN)/python -m steelyard.admin.reference --write docs/metrics.md

.PHONY: scenes
scenes: $(VENV)/base ## The traps, before and after, live (SHORT=1: a few minutes)
	@$(BIN)/steelyard traps --live $(if $(SHORT),--short) $(ARGS)

.PHONY: bench
bench: $(COMPILED)/dev ## Cost of a request beside nginx, HAProxy and others; Steelyard as a wheel gives it
	@$(COMPILED)/bin/python -m bench $(ARGS)

.PHONY: test-real
test-real: $(VENV)/dev ## Tests with real engines and real weights; the first run builds them (docs/real-engines.md)
	@$(PYTHON) tests/real/prepare.py
	$(BIN)/python -m pytest -q -m real tests/real $(PYTEST)

.PHONY: clean
clean: ## Remove the environment and all caches
	rm -rf $(VENV) $(COMPILED) dist build .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

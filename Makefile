# Two commands on a fresh machine: `make demo` and `make test`. Both set up .venv beside the code first.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install -q -c constraints.txt

.PHONY: setup demo test docs check clean

setup: .venv/ready

# torch first: the constraint keeps pip from resolving to another build of it.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) --upgrade pip "setuptools>=77.0.3"
	$(PIP) torch
	$(PIP) -e .
	touch $@

# torchvision alone: what it asks for would bring another torch. Without it the tests of detection are skipped.
.venv/ready-dev: .venv/ready
	$(PIP) -e ".[dev]"
	-$(PIP) --no-deps torchvision
	touch $@

demo: .venv/ready
	$(BIN)/evenhand demo

test: .venv/ready-dev
	$(BIN)/python -m pytest -n 2 -m "not docs"

docs: .venv/ready-dev
	$(BIN)/python -m pytest -m docs

check: .venv/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache

# Two commands on a fresh machine: `make demo` and `make test`. Both set up .venv beside the code first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test docs check clean

setup: .venv/ready

# torch first: the constraint keeps pip from resolving to another build of it.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --upgrade pip "setuptools>=77.0.3"
	$(BIN)/python -m pip install -q -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[dev]"
	touch $@

demo: setup
	$(BIN)/evenhand demo

test: setup
	$(BIN)/python -m pytest -n 2 -m "not docs"

docs: setup
	$(BIN)/python -m pytest -m docs

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache

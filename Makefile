# `make run` serves the examples, `make test` runs the tests; both make .venv first.
PYTHON ?= python3
# CI pins every package: REQUIREMENTS_LOCK=requirements.lock
REQUIREMENTS_LOCK ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(REQUIREMENTS_LOCK),-c $(REQUIREMENTS_LOCK))

.PHONY: run test check format lock clean

run: .venv/run.stamp
	@$(BIN)/python -m examples

test: .venv/dev.stamp
	$(BIN)/python -m pytest

check: .venv/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: .venv/dev.stamp
	$(BIN)/python -m pip freeze --exclude-editable --exclude headrace > requirements.lock

clean:
	rm -rf .venv

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Headrace needs Python 3.11 or newer; name one with: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv .venv

.venv/run.stamp: requirements.txt $(REQUIREMENTS_LOCK) | .venv/bin/python
	$(PIP) -r requirements.txt
	@touch $@

.venv/dev.stamp: requirements-dev.txt requirements.txt $(REQUIREMENTS_LOCK) | .venv/bin/python
	$(PIP) -r requirements-dev.txt
	@touch $@ .venv/run.stamp

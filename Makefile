# `make run` serves the examples, `make test` runs the tests; both make .venv first.
PYTHON ?= python3
# CI pins every package: REQUIREMENTS_LOCK=requirements.lock
REQUIREMENTS_LOCK ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(REQUIREMENTS_LOCK),-c $(REQUIREMENTS_LOCK))

.PHONY: run test check format lock clean

run: .venv/run.stamp
	@$(BIN)/python -m examples

# Two lines of tests side by side: those of one process; and those that mostly wait for processes of their own, then the
# browser's, where gevent must not patch anything. What the second line says comes last.
PROCESSES := tests/test_*processes.py
BESIDE := tests/browser/results/output.txt
test: .venv/dev.stamp tests/client/node_modules/ready.stamp
	@mkdir -p $(dir $(BESIDE))
	@{ $(BIN)/python -m pytest $(PROCESSES); processes=$$?; \
	   $(BIN)/python -m pytest tests/browser; exit $$((processes || $$?)); } > $(BESIDE) 2>&1 & beside=$$!; \
	trap 'pkill -P $$beside; exit 130' INT TERM; \
	$(BIN)/python -m pytest --ignore-glob='$(PROCESSES)'; here=$$?; \
	wait $$beside; beside=$$?; \
	echo; echo "Processes and browser:"; cat $(BESIDE); \
	exit $$((here || beside))

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
	rm -rf .venv tests/client/node_modules

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Headrace needs Python 3.11 or newer; name one with: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv .venv

.venv/run.stamp: requirements.txt $(REQUIREMENTS_LOCK) | .venv/bin/python
	$(PIP) -r requirements.txt
	@touch $@

.venv/dev.stamp: requirements-dev.txt requirements.txt $(REQUIREMENTS_LOCK) | .venv/bin/python
	$(PIP) -r requirements-dev.txt
	@touch $@ .venv/run.stamp

# What checks the types of the browser client. Without npm that test is skipped.
tests/client/node_modules/ready.stamp: tests/client/package-lock.json
	$(if $(shell command -v npm),npm ci --prefix tests/client --silent && touch $@)

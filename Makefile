# Two commands on a fresh machine: make demo, make test. See CONTRIBUTING.md.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv/bin
BENCH ?= recovery
UNSTEADY ?= 1
SINCE ?=
PART ?= all
# One more than there are cores: a fourth of the tests' time is waiting.
PROCESSES = $(shell echo $$(($$(nproc) + 1)))
CHOSEN = --part $(PART) $(if $(SINCE),--since $(SINCE))
export TORCH_INDEX ?=
# Without compiled modules each process of the tests would compile again what it imports; `make clean` removes them.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help machine setup test test-all test-rest part check docs demo bench chaos unsteady clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | column -t -s '|'

machine:
	@command -v "$(PYTHON)" >/dev/null || { echo "set-up: there is no '$(PYTHON)'. Name a Python 3.11, 3.12 or 3.13: make PYTHON=python3.12 setup" >&2; exit 1; }
	@"$(PYTHON)" scripts/check_machine.py

setup: machine  ## virtual environment, packages, page, guide (only what has changed)
	@"$(PYTHON)" scripts/setup.py

test: setup  ## the everyday tests, some minutes; SINCE=main: those of them that your changes reach
	@$(MAKE) --no-print-directory part PART=everyday

test-all: setup  ## those of `make test` and all others but what takes longest
	@$(MAKE) --no-print-directory part PART=all

test-rest: setup  ## what `make test-all` leaves out, more than an hour
	@$(MAKE) --no-print-directory part PART=rest

part:
	@"$(PYTHON)" scripts/setup.py browser
	@code=0; passed() { local got=0; "$$@" || got=$$?; [[ $$got == 0 || $$got == 5 ]] || code=$$got; }; \
	passed $(VENV)/python -m pytest tests/unit tests/architecture tests/conformance $(CHOSEN) \
		-n $(PROCESSES) --maxprocesses 8 --dist worksteal; \
	passed $(VENV)/python -m pytest tests/integration tests/e2e tests/chaos $(CHOSEN) \
		-n 2 --dist loadfile --no-loadscope-reorder --durations 30; \
	exit $$code

check: setup  ## formatting, lint, types, import contracts, the page's lint, types and tests
	$(VENV)/ruff format --check platform api jobs tests scripts
	$(VENV)/ruff check platform api jobs tests scripts
	$(VENV)/mypy
	$(VENV)/lint-imports --no-cache --no-logo
	@"$(VENV)/python" scripts/page.py lint typecheck test

docs: machine  ## the reference from the code, and the guide from docs/ (links checked; served at /guide)
	@"$(PYTHON)" scripts/setup.py venv torch packages
	@$(VENV)/python scripts/docs.py

demo: machine  ## train digits, kill a worker, see that nothing was lost
	@started=$$SECONDS; "$(PYTHON)" scripts/setup.py && $(VENV)/python -m ringleader.cli.demo; \
	code=$$?; echo "make demo: $$((SECONDS - started)) s with its set-up"; exit $$code

bench: setup  ## make bench BENCH=recovery
	$(VENV)/ringleader bench $(BENCH) --json

chaos: setup  ## long seeded fault runs
	$(VENV)/python -m pytest tests -m chaos --timeout 3600

unsteady: setup  ## the unit tests where every process is late at random: make unsteady UNSTEADY=7 SINCE=main
	PYTHONPATH=tests/unsteady UNSTEADY=$(UNSTEADY) $(VENV)/python -m pytest tests/unit $(CHOSEN) -n 5 --dist worksteal

clean:  ## remove everything that was made here
	rm -rf .venv api/web/node_modules api/web/dist api/ringleader_api/static api/ringleader_api/guide dist build test-results
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find platform api jobs tests scripts -name __pycache__ -prune -exec rm -rf {} +

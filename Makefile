# `make demo` and `make test` need Python 3.11 or newer, pip and make; everything else they bring themselves.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: demo test quick soak all-tests first-tests lab-built packages lint bench lab lab-down clean

demo: $(VENV)/train.stamp  ## train a small GPT-2 on Python's own standard library
	@$(BIN)/stoker train examples/00-demo/run.yaml \
	  data.path="$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')/*.py"

test: packages lint  ## every test, short forms
	@$(MAKE) --no-print-directory all-tests ONLY='-m "not soak"'

QUICK := architecture makefile docs core_install
quick: lint  ## what to run at every edit: no lab, no training, no commands; under 3 minutes on two quiet cores
	$(PYTEST) -m "not soak and not slow" $(QUICK:%=tests/test_%.py) $(addprefix tests/,api backends cli convert data diagnose \
	  kube observe rundir spec)

soak:  ## every test, long forms too, on the oldest torch that is served
	@$(MAKE) --no-print-directory VENV=.venv.soak TORCH='torch==2.11.*' packages all-tests

# The lab is built while the first tests run. With -j2 make waits for both, and fails when one does.
all-tests:
	@$(MAKE) --no-print-directory -j2 first-tests lab-built
	$(PYTEST) $(ONLY) tests/lab

first-tests: $(VENV)/dev.stamp
	@$(BIN)/python -m lab gcs
	$(PYTEST) $(ONLY) --ignore tests/lab

lab-built: $(VENV)/dev.stamp
	@mkdir -p .lab
	@echo "building the lab beside the tests: see .lab/build.log"
	@nice -n 19 $(BIN)/python -m lab build >.lab/build.log 2>&1; code=$$?; \
	  grep -v '^go: downloading' .lab/build.log; exit $$code

# What tests need from Debian is there before the first of them runs.
packages: $(VENV)/dev.stamp
	@$(BIN)/python -m lab packages

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/dev.stamp  ## every benchmark in its short form, one table each (some minutes); see bench/RESULTS.md
	$(BIN)/python -m bench

lab: $(VENV)/dev.stamp  ## a real Kubernetes cluster on this machine, kept until `make lab-down`
	$(BIN)/python -m lab up

lab-down: $(VENV)/dev.stamp
	$(BIN)/python -m lab down

clean:
	rm -rf $(VENV) .venv.soak .lab

$(VENV)/train.stamp: $(BIN)/python pyproject.toml
	@echo "installing stoker and torch into $(VENV) (a few minutes the first time)"
	$(PIP) install -e '.[train]'
	@touch $@

$(VENV)/dev.stamp: $(BIN)/python pyproject.toml
	@echo "installing stoker, torch and the test tools into $(VENV) (a few minutes the first time)"
	$(PIP) install -e '.[dev]' $(TORCH)
	@touch $@ $(VENV)/train.stamp

# Where Python comes without its venv module, virtualenv from pip makes the same.
$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "stoker: no Python 3.11 or newer was found. Install one, or run: make PYTHON=/path/to/python" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { \
	  rm -rf $(VENV) && $(PYTHON) -m pip install --quiet --disable-pip-version-check --target $(VENV).tool virtualenv && \
	  PYTHONPATH=$(VENV).tool $(PYTHON) -m virtualenv --quiet $(VENV) && rm -rf $(VENV).tool; }

# `make` lists the targets. Everything is installed into .venv; a second run skips that and takes seconds.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

PYTHON ?= python3
PYTEST_ARGS ?=
FUZZ_SECONDS ?= 600
SOAK_KILLS ?= 1000
SOAK_FAULTS ?= 200
SOAK_CHURN ?= 10000
WHEEL_TESTS ?= tests/unit/native tests/unit/data/runlog tests/unit/data/formats/tfrecord

VENV := .venv
BIN := $(VENV)/bin
DONE := $(VENV)/.done
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install

SOURCES := pyproject.toml setup.py $(wildcard native/*/*.[ch])
C_FILES = $$(find native tests/native -name '*.[ch]')
SANITIZED := build/sanitize

# ---- targets to call -------------------------------------------------------------------------------------------------

.PHONY: help
help: ## this list
	@sed -nE 's/^([a-z0-9-]+):[^#]*## (.*)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) | while IFS='|' read -r target does; do \
	    printf '  make %-11s %s\n' "$$target" "$$does"; done
	@echo
	@echo "  PYTHON=$(PYTHON)  PYTEST_ARGS='-k crc'  FUZZ_SECONDS=$(FUZZ_SECONDS)   change what they use"

.PHONY: demo
demo: $(DONE)/core ## install, then show the main job on data it makes, in under a minute
	@$(BIN)/holdfast demo

.PHONY: test
test: $(DONE)/test ## install with everything the tests need, then run them: all, and the formats again in pure Python
	@tools/system-packages.sh
	$(RUN_TESTS) $(PYTEST_ARGS)
	HOLDFAST_NATIVE=0 $(RUN_TESTS) -m formats $(or $(PYTEST_ARGS),$(FORMATS_FILES))$(NOTHING_SELECTED_IS_FINE)

# Collecting only the files that use the mark is faster than collecting all.
FORMATS_FILES = $$(grep -rl 'mark[.]formats' tests --include='test_*.py')

# The full suite runs in two processes, a selection by PYTEST_ARGS in one.
RUN_TESTS = $(if $(strip $(PYTEST_ARGS)),$(BIN)/python -m pytest,tools/run-tests.sh $(BIN)/python)

# PYTEST_ARGS may select no test with the mark: pytest then exits with 5.
NOTHING_SELECTED_IS_FINE = $(if $(strip $(PYTEST_ARGS)), || [ $$? = 5 ])

.PHONY: quick
quick: $(DONE)/quick ## install pytest and no framework (under 300 MB), then run the unit tests that need nothing else: minutes
	tools/run-tests.sh $(BIN)/python tests/unit $(patsubst %,--ignore=tests/unit/%,$(SLOW_UNITS)) $(PYTEST_ARGS)

# Unit tests with many real processes or random cases, which take minutes; the rest takes about 190 s of CPU time.
SLOW_UNITS := process/fdtrace data/writer data/torch_loader data/formats/hdf5 data/rewrite data/runlog data/loader/workers \
    data/loader/test_model.py

.PHONY: test-h5py
test-h5py: $(DONE)/core ## run the tests of parts under h5py 3.14 and the newest, each reading what the other wrote
	PYTHON=$(PYTHON) tools/h5py-versions.sh

.PHONY: soak
soak: soak-write soak-read ## both of the following, for some hours

.PHONY: soak-write
soak-write: $(DONE)/core ## kill writers a thousand times, at failpoints and at random moments; then count rows
	$(BIN)/python tools/soak_write.py --kills $(SOAK_KILLS)
	$(BIN)/python tools/soak_write.py --kills $(SOAK_KILLS) --shared

.PHONY: soak-read
soak-read: $(DONE)/test ## kill and stop the workers of loaders, then create and drop ten thousand loaders of each kind
	$(BIN)/python tools/soak_read.py --faults $(SOAK_FAULTS) --churn $(SOAK_CHURN)

.PHONY: wheel
wheel: $(DONE)/venv ## build a wheel for any Python from 3.11 on into dist/
	@tools/wheel.sh $(BIN)/python dist

.PHONY: wheel-test
wheel-test: $(DONE)/test wheel ## run WHEEL_TESTS on that wheel, in an environment of its own
	tools/wheel-test.sh $(BIN)/python dist/holdfast_io-*.whl $(WHEEL_TESTS)

.PHONY: lint
lint: $(DONE)/lint ## ruff, mypy --strict, who may import whom, clang-format
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/clang-format --dry-run --Werror $(C_FILES)

.PHONY: format
format: $(DONE)/lint ## let ruff and clang-format put the sources in shape
	$(BIN)/ruff check --fix --exit-zero --quiet
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(C_FILES)

.PHONY: fuzz
fuzz: ## feed the C codec garbage for FUZZ_SECONDS (10 minutes)
	@tools/system-packages.sh
	tools/fuzz.sh $(FUZZ_SECONDS)

# The sanitizer's library must be loaded first, before Python, and libstdc++ with it, because the sanitizer looks up the
# C++ runtime's functions only once. PYTHONMALLOC=malloc lets it check Python's small objects too. It reports to
# descriptor 2 at the end of the process, so pytest must not capture that descriptor.
SANITIZED_PYTEST = LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so.6)" \
    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc HOLDFAST_NATIVE=1 \
    PYTHONPATH=$(CURDIR)/$(SANITIZED)/lib $(BIN)/python -m pytest --capture=sys

.PHONY: sanitize
sanitize: $(DONE)/test ## run the codec's and the formats' tests with the C under ASan and UBSan
	rm -rf $(SANITIZED)/lib
	CC=gcc CFLAGS='-g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all' \
	    $(BIN)/python setup.py --quiet build --build-base $(SANITIZED) --build-lib $(SANITIZED)/lib
	$(SANITIZED_PYTEST) tests/unit/native $(PYTEST_ARGS)
	$(SANITIZED_PYTEST) -m formats --ignore=tests/unit/native $(PYTEST_ARGS)$(NOTHING_SELECTED_IS_FINE)

.PHONY: bench
bench: $(DONE)/test ## compare with the peers in one run; prints ratios, saves JSON and plots
	$(BIN)/python -m benchmarks.common.environments pypi images
	$(BIN)/python -m benchmarks.tfrecord
	$(BIN)/python -m benchmarks.fdscan
	$(BIN)/python -m benchmarks.read
	$(BIN)/python -m benchmarks.read.memory
	$(BIN)/python -m benchmarks.read.shards
	$(BIN)/python -m benchmarks.write
	$(BIN)/python -m benchmarks.trace
	$(BIN)/python -m benchmarks.guard

.PHONY: bench-peers
bench-peers: $(DONE)/test ## compare with other loaders, each in its own format; installs them into .venv-peers (5 GB) first
	$(BIN)/python -m benchmarks.peers

.PHONY: docs
docs: $(DONE)/docs ## build the documentation into site/
	$(BIN)/mkdocs build --strict

.PHONY: clean
clean: ## remove everything that was built or installed here
	rm -rf $(VENV) .venv-peers .venv-h5py build dist site src/*.egg-info src/holdfast/_native/*.so
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

# ---- environments they depend on -------------------------------------------------------------------------------------

$(DONE)/venv:
	@command -v $(PYTHON) >/dev/null || \
	    { echo "holdfast needs Python 3.11 or newer, and there is no $(PYTHON): say make PYTHON=…" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "holdfast needs Python 3.11 or newer, and \
	$(PYTHON) is %d.%d: say make PYTHON=…" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(@D) && touch $@

# The extensions are optional: if one does not compile, pip goes on, and the one built before must be deleted.
$(DONE)/core: $(SOURCES) | $(DONE)/venv
	@touch $@.begun
	@echo "installing holdfast into $(VENV)"
	$(PIP) -e .
	@find src/holdfast/_native -name '*.so' ! -newer $@.begun -delete
	@mv $@.begun $@

$(DONE)/test: EXTRAS := test,ui,bench
$(DONE)/quick: EXTRAS := quick
$(DONE)/lint: EXTRAS := lint
$(DONE)/docs: EXTRAS := docs
$(DONE)/test $(DONE)/quick $(DONE)/lint $(DONE)/docs: pyproject.toml | $(DONE)/core
	@echo "installing what $(@F) needs (the first time this takes minutes)"
	$(PIP) -e '.[$(EXTRAS)]'
	@touch $@

# fineweb_shards: `make` lists the targets. Every target but help and clean sets up .venv if needed.

SAMPLE ?= demo
OUT ?=
WORKERS ?=
MINUTES ?= 30
ARGS ?=

PYTHON ?= python3
BIN := .venv/bin
# Quote any text as one shell word.
quote = '$(subst ','\'',$(1))'
TARGET = $(call quote,$(SAMPLE))
FOLDER = $(call quote,$(or $(OUT),$(SAMPLE)))
FLAGS = $(if $(OUT),--out $(call quote,$(OUT))) $(if $(WORKERS),--workers $(call quote,$(WORKERS))) $(ARGS)

.DEFAULT_GOAL := help
TARGETS := help shards plan status report verify test test-all test-rest test-lowest soak check bench bench-hub \
  bench-line bench-bucket bench-mix bench-shuffle bench-tokenizers bench-control bench-ray cluster-demo \
  dist try-dist lock clean
.PHONY: $(TARGETS)
# Checked before anything runs: `make shards sample-10BT` would build the demo first.
UNKNOWN := $(filter-out $(TARGETS) .venv/run .venv/dev .venv/full,$(MAKECMDGOALS))
ifneq ($(UNKNOWN),)
  $(error There is no target $(UNKNOWN). A sample is named by SAMPLE: make shards SAMPLE=$(firstword $(UNKNOWN)))
endif

help: ## list the targets
	@echo "make shards [SAMPLE=name] [OUT=folder] [WORKERS=n] [ARGS='--flag value']"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  SAMPLE is one of: $(basename $(notdir $(wildcard configs/*.toml)))"

shards: .venv/run ## build the shards of configs/SAMPLE.toml (default: demo), or resume
	@$(BIN)/fineweb-shards build $(TARGET) $(FLAGS)

plan: .venv/run ## show what `make shards` would do; writes nothing
	@$(BIN)/fineweb-shards plan $(TARGET) $(FLAGS)

# Exit codes 20 (running) and 21 (stopped) are answers, not failures.
status: .venv/run ## show the progress, from any terminal
	@$(BIN)/fineweb-shards status $(FOLDER) $(ARGS) || [ $$? -ge 20 ]

report: .venv/run ## recreate report.html (ARGS=--open: show it in the browser)
	@$(BIN)/fineweb-shards report $(FOLDER) $(ARGS)

verify: .venv/run ## read every shard back and check it
	@$(BIN)/fineweb-shards verify $(FOLDER)

# One more process than cores, because tests wait for the programs that they start.
PROCESSES = $(shell $(BIN)/python -c 'import os; print(min(8, (os.cpu_count() or 1) + 1))')
PYTEST = $(BIN)/python -m pytest --numprocesses=$(PROCESSES) --dist=worksteal
test: check ## checks and quick tests of every promise, without Ray or a browser; four minutes
	@$(PYTEST) -m 'not full' $(ARGS)

test-all: test ## the same plus Ray, a browser, every layout with everything, and the lowest versions
	@$(MAKE) --no-print-directory test-rest

test-rest: .venv/full # what `make test` leaves out
	@$(PYTEST) -m full $(ARGS)
	@$(MAKE) --no-print-directory test-lowest

# The lowest versions that pyproject.toml allows, in a separate environment, resolved by uv. RESOLUTION=highest takes the
# newest ones, PYTHON=python3.13 another Python.
LOWEST := .venv-lowest
RESOLUTION ?= lowest-direct
LOWEST_TESTS := tests/exactness/test_same_bytes.py tests/loader/test_shard_loader.py \
  tests/sources/hub/test_hub_tokens.py tests/sources/hub/test_hub_paths.py tests/sources/test_web_input.py \
  tests/sources/hub/test_transport.py::test_one_resolve_for_each_file
test-lowest: $(LOWEST)/ready ## test exactness, hub, parquet and loader with the lowest declared versions; a minute
	@$(LOWEST)/bin/python -m pytest --numprocesses=2 $(LOWEST_TESTS) $(ARGS)

$(LOWEST)/ready: pyproject.toml
	@echo "Setting up $(LOWEST) with the lowest versions ..."
	@rm -rf $(LOWEST) && $(PYTHON) -m venv $(LOWEST) && $(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check uv
	@$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution $(RESOLUTION) \
	  --editable '.[tokenizers,sentencepiece,buckets]'
	@$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python pytest pytest-xdist hypothesis psutil
	@touch $@

soak: .venv/full ## full tests of every promise, then MINUTES=30 with one fault per minute; hours
	@$(BIN)/python -m pytest --soak $(ARGS)
	@$(BIN)/python -m tests.night --minutes $(MINUTES)

check: .venv/dev ## check lint, format, types and import order
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo --no-cache >.venv/imports.txt || { cat .venv/imports.txt; exit 1; }

bench: .venv/full ## compare speed and memory with other programs; writes benchmarks/results.md (ARGS=--quick: a minute)
	@$(BIN)/python benchmarks/run.py $(ARGS)

bench-hub: .venv/full ## compare the disk with a hub on this machine
	@$(BIN)/python benchmarks/hub.py $(ARGS)

bench-line: .venv/full ## compare the disk with a hub behind a simulated internet connection
	@$(BIN)/python benchmarks/line.py $(ARGS)

bench-bucket: .venv/full ## compare writing to a folder and to a bucket on this machine
	@$(BIN)/python benchmarks/bucket.py $(ARGS)

bench-mix: .venv/full ## compare a mix with its parts one after the other, and export --mix with export
	@$(BIN)/python benchmarks/mix.py $(ARGS)

bench-tokenizers: .venv/full ## compare every tokenizer's own library with this program
	@$(BIN)/python benchmarks/tokenizer_speed.py $(ARGS)

bench-control: .venv/full ## measure how many tokens/s the parent can schedule, with simulated workers
	@$(BIN)/python benchmarks/control_plane.py $(ARGS)

bench-shuffle: .venv/full ## compare a build with and without --shuffle; two minutes
	@$(BIN)/python benchmarks/shuffle.py $(ARGS)

bench-ray: .venv/full ## compare local processes with Ray on this machine
	@$(BIN)/python benchmarks/ray_speed.py $(ARGS)

cluster-demo: .venv/full ## run two Ray nodes and an S3 server on this machine, and kill a node; a minute
	@$(BIN)/python docs/examples/cluster_demo.py

# An environment for the tools, then one for the result as users install it, which must not need the checkout: the wheel
# with its dependencies builds the demo; the loader, from the sdist with NumPy alone, reads it.
DIST := .venv-dist
DIST_PYTHONS ?= python3.11 python3.12 python3.13
LOAD := import fineweb_shards; fineweb_shards.ShardLoader("demo", "train", batch_size=8, seq_len=1024).next_batch()
MAKE_DIST_VENV = rm -rf $(DIST) && $(PYTHON) -m venv $(DIST)
INSTALL_DIST = $(DIST)/bin/python -m pip install --quiet --disable-pip-version-check
dist: ## build wheel and sdist into dist/, check them, and run the demo with each of DIST_PYTHONS
	@rm -rf dist build && $(MAKE_DIST_VENV) && $(INSTALL_DIST) build twine
	@$(DIST)/bin/python -m build --outdir dist >.venv-dist/build.log || { cat .venv-dist/build.log; exit 1; }
	@$(DIST)/bin/twine check --strict dist/*
	@set -e; for python in $(DIST_PYTHONS); do $(MAKE) --no-print-directory PYTHON=$$python try-dist; done
	@rm -rf $(DIST) build && ls -l dist

try-dist: # what `make dist` does with each Python
	@$(PYTHON) -V && $(MAKE_DIST_VENV) && $(INSTALL_DIST) dist/*.whl
	@cd $(DIST) && bin/fineweb-shards build demo --out demo --quiet && bin/fineweb-shards verify demo
	@$(PYTHON) -m venv --clear $(DIST)/loader && \
	  $(DIST)/loader/bin/python -m pip install --quiet --disable-pip-version-check --no-deps numpy dist/*.tar.gz
	@cd $(DIST) && loader/bin/python -c '$(LOAD)'

lock: ## write requirements-dev.lock: exact versions of everything in [dev], with hashes, without an index
	@$(MAKE_DIST_VENV) && $(INSTALL_DIST) uv
	@$(DIST)/bin/uv pip compile --quiet --universal --python-version 3.11 --extra dev --generate-hashes \
	  --no-emit-index-url --no-annotate --custom-compile-command 'make lock' pyproject.toml -o requirements-dev.lock
	@rm -rf $(DIST)

clean: ## remove .venv, .venv-lowest, builds and caches, never shards
	rm -rf .venv $(LOWEST) $(DIST) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info

# Three stamps, so that `make shards` does not install what only tests need, nor `make test` Ray. If uv is installed, it
# installs the packages and finds a suitable Python.
FITS := import sys; sys.exit(sys.version_info < (3, 11))
# Without its Python a .venv is useless: drop the stamps.
$(shell $(BIN)/python -c '$(FITS)' 2>/dev/null || rm -f .venv/run .venv/dev .venv/full)
ifneq ($(shell command -v uv 2>/dev/null),)
  MAKE_VENV = uv venv --quiet --python $(if $(filter-out file,$(origin PYTHON)),$(call quote,$(PYTHON)),'>=3.11') .venv
  HAS_INSTALLER = true
  INSTALL = uv pip install --quiet --python $(BIN)/python
else
  MAKE_VENV = { $(PYTHON) -c '$(FITS)' 2>/dev/null || $(TOO_OLD); } && $(PYTHON) -m venv .venv
  HAS_INSTALLER = $(BIN)/python -m pip --version
  INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check
endif
TOO_OLD = { echo "fineweb_shards needs Python 3.11 or later; $(PYTHON) is: $$($(PYTHON) -V 2>&1 | head -n 1)." \
  "Name another one: make PYTHON=python3.12" >&2; false; }

# An unusable .venv (made by an old or removed Python, or incomplete) is replaced. One that only lacks pip, as uv makes
# them, gets pip, because you may have installed other packages in it.
USABLE = $(BIN)/python -c '$(FITS)' && { $(HAS_INSTALLER) || { $(BIN)/python -m ensurepip && $(HAS_INSTALLER); }; }
.venv/run .venv/dev .venv/full: pyproject.toml
	@{ $(USABLE); } >/dev/null 2>&1 || \
	  { rm -rf .venv && $(MAKE_VENV) && { $(BIN)/python -c '$(FITS)' || $(TOO_OLD); }; } || { rm -rf .venv; exit 1; }
	@echo "Setting up .venv ($(WITH_$(@F))); once, about a minute ..."
	@$(INSTALL) --editable '.$(EXTRAS_$(@F))'
	@touch $@ $(patsubst %,.venv/%,$(ALSO_$(@F)))

WITH_run := what a build needs
WITH_dev := with test tools
WITH_full := with test tools, Ray and what benchmarks compare with
EXTRAS_dev := [dev]
EXTRAS_full := [dev,full]
ALSO_dev := run
ALSO_full := dev run

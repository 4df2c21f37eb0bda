# fineweb_shards: `make` lists what there is. Every target but help and clean sets up .venv by itself.

SAMPLE ?= demo
OUT ?=
WORKERS ?=
MINUTES ?= 30
ARGS ?=

PYTHON ?= python3
BIN := .venv/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
# A word for the shell, whatever is in it.
quote = '$(subst ','\'',$(1))'
TARGET = $(call quote,$(SAMPLE))
FOLDER = $(call quote,$(or $(OUT),$(SAMPLE)))
FLAGS = $(if $(OUT),--out $(call quote,$(OUT))) $(if $(WORKERS),--workers $(call quote,$(WORKERS))) $(ARGS)
# What was typed, for the command that is printed to resume with.
given = $(filter-out undefined default file,$(origin $(1)))
TYPED = make shards$(foreach name,SAMPLE OUT WORKERS ARGS,$(if $(call given,$(name)), $(name)=$(call quote,$(value $(name)))))

.DEFAULT_GOAL := help
TARGETS := help shards plan status report verify test test-all test-rest test-lowest soak check bench bench-hub \
  bench-line bench-bucket bench-mix bench-tokenizers bench-control bench-ray cluster-demo dist try-dist lock clean
.PHONY: $(TARGETS)
# Before anything runs: `make shards sample-10BT` would build the demo first.
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

shards: .venv/run ## make the shards of configs/SAMPLE.toml (without SAMPLE: a demo), or resume
	@FINEWEB_SHARDS_COMMAND=$(call quote,$(TYPED)) $(BIN)/fineweb-shards build $(TARGET) $(FLAGS)

plan: .venv/run ## show what `make shards` would do, without writing anything
	@$(BIN)/fineweb-shards plan $(TARGET) $(FLAGS)

# 20 and 21 mean running and stopped: answers, not failures.
status: .venv/run ## how far it is, from any terminal (ARGS=--watch keeps showing it)
	@$(BIN)/fineweb-shards status $(FOLDER) $(ARGS) || [ $$? -ge 20 ]

report: .venv/run ## make the page about it again (ARGS=--open shows it in the browser)
	@$(BIN)/fineweb-shards report $(FOLDER) $(ARGS)

verify: .venv/run ## read every shard back and check it
	@$(BIN)/fineweb-shards verify $(FOLDER)

# One more than there are cores: tests wait for the programs that they start.
PROCESSES = $(shell $(BIN)/python -c 'import os; print(min(8, (os.cpu_count() or 1) + 1))')
PYTEST = $(BIN)/python -m pytest --numprocesses=$(PROCESSES) --dist=worksteal
test: check ## checks, and every promise in its quick form, without Ray or a browser; four minutes
	@$(PYTEST) -m 'not full' $(ARGS)

test-all: test ## the same, then the rest: Ray, a browser, every layout with everything, the lowest versions
	@$(MAKE) --no-print-directory test-rest

test-rest: .venv/full # what `make test` leaves out
	@$(PYTEST) -m full $(ARGS)
	@$(MAKE) --no-print-directory test-lowest

# The lowest versions that pyproject.toml allows, in a .venv of their own: uv resolves them, pip installs it there.
LOWEST := .venv-lowest
LOWEST_TESTS := tests/exactness/test_same_bytes.py tests/loader/test_shard_loader.py \
  tests/sources/hub/test_hub_tokens.py tests/sources/hub/test_hub_paths.py tests/sources/test_web_input.py \
  tests/sources/hub/test_transport.py::test_one_resolve_for_each_file
test-lowest: $(LOWEST)/ready ## exactness, hub, parquet and loader with the lowest versions that are declared; a minute
	@$(LOWEST)/bin/python -m pytest --numprocesses=2 $(LOWEST_TESTS) $(ARGS)

$(LOWEST)/ready: pyproject.toml
	@echo "Setting up $(LOWEST) with the lowest versions ..."
	@rm -rf $(LOWEST) && $(PYTHON) -m venv $(LOWEST) && $(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check uv
	@$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct \
	  --editable '.[tokenizers,sentencepiece,buckets]'
	@$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python pytest pytest-xdist hypothesis psutil
	@touch $@

soak: .venv/full ## every promise in full, then a night of MINUTES=30 with a fault a minute; hours
	@$(BIN)/python -m pytest --soak $(ARGS)
	@$(BIN)/python -m tests.night --minutes $(MINUTES)

check: .venv/dev ## lint, format, types and the order of the packages
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo --no-cache >.venv/imports.txt || { cat .venv/imports.txt; exit 1; }

bench: .venv/full ## speed and memory beside other programs; writes benchmarks/results.md (ARGS=--quick: a minute)
	@$(BIN)/python benchmarks/run.py $(ARGS)

bench-hub: .venv/full ## the same files from the disk and from a hub on loopback
	@$(BIN)/python benchmarks/hub.py $(ARGS)

bench-line: .venv/full ## the same files from the disk and over a line like that to a real CDN
	@$(BIN)/python benchmarks/line.py $(ARGS)

bench-bucket: .venv/full ## the same build into a folder and into a bucket on loopback
	@$(BIN)/python benchmarks/bucket.py $(ARGS)

bench-mix: .venv/full ## a mix beside its parts one after the other, and export --mix beside export
	@$(BIN)/python benchmarks/mix.py $(ARGS)

bench-tokenizers: .venv/full ## every tokenizer: its own library, and this program with it
	@$(BIN)/python benchmarks/tokenizer_speed.py $(ARGS)

bench-control: .venv/full ## how many tokens per second the parent can order, with simulated workers
	@$(BIN)/python benchmarks/control_plane.py $(ARGS)

bench-ray: .venv/full ## the same files with local processes and with Ray on this machine
	@$(BIN)/python benchmarks/ray_speed.py $(ARGS)

cluster-demo: .venv/full ## two nodes of Ray and an S3 server on this machine, a node killed on the way; a minute
	@$(BIN)/python docs/examples/cluster_demo.py

# Tools, and after them what was built, as strangers install it: nothing of the checkout may be needed. The wheel with
# all that it depends on builds the demo; the loader reads it from the sdist, installed beside NumPy alone.
DIST := .venv-dist
DIST_PYTHONS ?= python3.11 python3.12 python3.13
LOAD := import fineweb_shards; fineweb_shards.ShardLoader("demo", "train", batch_size=8, seq_len=1024).next_batch()
MAKE_DIST_VENV = rm -rf $(DIST) && $(PYTHON) -m venv $(DIST)
INSTALL_DIST = $(DIST)/bin/python -m pip install --quiet --disable-pip-version-check
dist: ## build wheel and sdist into dist/, check them, and run the demo with every Python of DIST_PYTHONS
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

lock: ## write requirements-dev.lock: the versions of all packages of [dev], with hashes and without an index
	@$(MAKE_DIST_VENV) && $(INSTALL_DIST) uv
	@$(DIST)/bin/uv pip compile --quiet --universal --python-version 3.11 --extra dev --generate-hashes \
	  --no-emit-index-url --no-annotate --custom-compile-command 'make lock' pyproject.toml -o requirements-dev.lock
	@rm -rf $(DIST)

clean: ## remove .venv, .venv-lowest, builds and caches (never any shards)
	rm -rf .venv $(LOWEST) $(DIST) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info

# Three stamps, so that `make shards` does not install what only tests need, nor `make test` Ray. With uv where it is
# installed, which then finds a fitting Python by itself.
FITS := import sys; sys.exit(sys.version_info < (3, 11))
# The stamps of a .venv whose Python is gone say nothing.
$(shell $(BIN)/python -c '$(FITS)' 2>/dev/null || rm -f .venv/run .venv/dev .venv/full)
ifneq ($(shell command -v uv 2>/dev/null),)
  MAKE_VENV = uv venv --quiet --python $(if $(call given,PYTHON),$(call quote,$(PYTHON)),'>=3.11') .venv
  HAS_INSTALLER = true
  INSTALL = uv pip install --quiet --python $(BIN)/python
else
  MAKE_VENV = { $(PYTHON) -c '$(FITS)' 2>/dev/null || $(TOO_OLD); } && $(PYTHON) -m venv .venv
  HAS_INSTALLER = $(BIN)/python -m pip --version
  INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check
endif
TOO_OLD = { echo "fineweb_shards needs Python 3.11 or later; $(PYTHON) is: $$($(PYTHON) -V 2>&1 | head -n 1)." \
  "Name another one: make PYTHON=python3.12" >&2; false; }

# A .venv that can't be used (made by an old Python, by one that is gone, or only half) is made anew. One that only
# has no pip (uv makes such) gets it: what else is in there may be yours.
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

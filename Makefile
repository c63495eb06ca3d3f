# shardcost: every chore is one target. `make demo` and `make test` set up all they need.
#
# The environment is .venv in this folder, made by the first target that needs it and renewed when
# pyproject.toml or constraints.txt changes. PYTHON chooses the interpreter: make test PYTHON=python3.12

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
WANTED := pyproject.toml constraints.txt
# One process for each core: a BLAS that starts as many threads again only makes them wait.
PYTEST = OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest --quiet --numprocesses auto --maxprocesses 4 --dist worksteal

PAGE ?= docs/validation.md
RECORD := docs/validation/recorded.toml

.PHONY: demo serve test quick slowest checks core lint types layers pages browser tests gate validate record bench examples pictures release format clean help

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

DECODING := llama3-70b --on h100_sxm --gpus 8 --decode --batch 64 --context-tokens 4096

demo: .venv/demo ## the main job: what Llama 3 70B costs on 8 H100s, and the best layout for it
	@$(BIN)/shardcost estimate $(DECODING) --tp 8
	@echo
	@$(BIN)/shardcost plan $(DECODING)
	@echo
	@echo "To look at it in a browser: make serve"

serve: .venv/web ## the page, on this machine only
	@$(BIN)/shardcost serve

# Python may keep what it has compiled: half of the time to collect the tests.
unexport PYTHONDONTWRITEBYTECODE

test: .venv/dev browser ## everything that CI checks: under 6 minutes on two cores
	@$(MAKE) --no-print-directory --jobs 2 tests checks

quick: .venv/dev ## before each commit, under a minute: style, types, layers, tests of the core
	@$(MAKE) --no-print-directory --jobs 2 core lint layers types

checks: lint layers types pages gate

core: .venv/dev
	@SHARDCOST_EVIDENCE=none $(PYTEST) --quick tests


lint: .venv/dev ## style
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: .venv/dev ## static types
	@$(BIN)/mypy

layers: .venv/dev ## which module may import which
	@$(BIN)/lint-imports

pages: .venv/dev ## the documentation as a site, in build/site; a warning is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

tests: .venv/dev browser ## unit tests, property tests, every example in the documentation, the page
	@$(PYTEST) -m "not refit" $(DURATIONS)

slowest: ## the tests, and the twenty that take longest
	@$(MAKE) --no-print-directory tests DURATIONS='--durations=20 --durations-min=0.5'

# The page is tested in a real browser. With SHARDCOST_BROWSER=required, as in CI, its tests fail
# where there is none; otherwise they say that they were skipped.
browser: .venv/dev ## a Chromium: the one that is installed, else Debian's where it may be installed
	@$(BIN)/python tests/chromium.py

gate: .venv/dev ## errors on the shipped measurements are those on record; a page of them in build/
	@$(MAKE) --no-print-directory validate PAGE=build/validation.md SHARDCOST_EVIDENCE=

# Where SHARDCOST_EVIDENCE names a folder of tables, the page is of these too, and takes a quarter of
# an hour; of what ships alone it takes seconds. PAGE is where it goes, its pictures beside it.
validate: .venv/dev ## prediction against measurement: the page, its pictures, and no error grown
	@mkdir -p '$(dir $(PAGE))'
	@$(BIN)/python -m lab.page '$(PAGE)' --shipped $(if $(SHARDCOST_EVIDENCE),--folder '$(SHARDCOST_EVIDENCE)',--quick)
	@$(BIN)/python -m lab.record $(RECORD) --check
	@$(if $(SHARDCOST_EVIDENCE),$(PYTEST) -m refit tests)

record: .venv/dev ## take the errors of now as those that `make validate` holds against
	@mkdir -p '$(dir $(RECORD))'
	@$(BIN)/python -m lab.record $(RECORD)

bench: .venv/dev ## speed, as ratios to the commit in benchmarks/baseline.txt, measured in one run
	@$(BIN)/python benchmarks/front_door.py
	@$(BIN)/python benchmarks/footprint.py
	@$(BIN)/python benchmarks/collectives.py
	@$(BIN)/python benchmarks/simulation.py
	@$(BIN)/python benchmarks/estimate.py
	@$(BIN)/python benchmarks/search.py
	@$(BIN)/python benchmarks/load.py
	@$(BIN)/python benchmarks/trace.py
	@$(BIN)/python benchmarks/serve.py
	@$(BIN)/python benchmarks/page.py

examples: .venv/dev ## rewrite the console blocks of the documentation with what commands print now
	@$(BIN)/python tests/console_blocks.py

pictures: .venv/dev ## take the pictures of the page in the documentation anew
	@$(BIN)/python tests/page_pictures.py

# The wheel with all extras for every interpreter that is here: minutes, mostly of downloads.
release: .venv/dev ## wheel and sdist in dist/, tried in clean environments with all extras
	@rm -rf dist
	@$(BIN)/python -m hatchling build --target sdist --target wheel
	@SHARDCOST_RELEASE=dist $(BIN)/python -m pytest --quiet tests/test_release.py

format: .venv/dev ## rewrite the code in the project's style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## remove the environment and every cache
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist

.venv/bin/python:
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "make: shardcost needs Python 3.11 or newer, not '$(or $(PYTHON),none)'; PYTHON=… chooses one" >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; \
		echo "make: '$(PYTHON) -m venv' failed (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }

.venv/demo: .venv/bin/python $(WANTED)
	@echo "Setting up .venv (once)…"
	@$(PIP) install --constraint constraints.txt --editable .
	@touch $@

.venv/web: .venv/bin/python $(WANTED)
	@echo "Setting up .venv for the page (once)…"
	@$(PIP) install --constraint constraints.txt --editable '.[web]'
	@touch $@ .venv/demo

.venv/dev: .venv/bin/python $(WANTED)
	@echo "Setting up .venv for development (once)…"
	@$(PIP) install --constraint constraints.txt --editable '.[dev]'
	@touch $@ .venv/demo .venv/web

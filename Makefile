# Everything works from a fresh clone with Python 3.11+ alone; the first command of any kind makes .venv.

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
PYTEST := $(PY) -m pytest -q -p no:cacheprovider
# What the shape-checked lane runs: the library's tests, without those that train or that look at notebooks.
SHAPED  = tests/flash/test_tiled.py tests/flash/test_dispatch.py $(filter-out %/test_learning.py %/test_exercises.py %/test_repository.py,$(wildcard tests/test_*.py tests/checks/test_*.py))
# Triton decides once in a process whether it interprets kernels or compiles them.
INTERPRETED = tests/flash/test_triton_interpreted.py tests/flash/test_differential.py
# One thread a process and two processes beat two threads in one, measured on two cores.
export OMP_NUM_THREADS ?= 1
export PYTHONDONTWRITEBYTECODE = 1
# Two test processes must collect the same tests in the same order.
export PYTHONHASHSEED = 0

.DEFAULT_GOAL := help
.PHONY: help book book-solutions serve test check assignments bench screenshot repository clean

help: ## say what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 16

$(VENV)/.ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed, found: $$($(PYTHON) --version 2>&1). Name one: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) cannot make a virtual environment: install its venv package (Debian: python3-venv)"; rm -rf $(VENV); exit 1; }
	$(PY) -m pip install --disable-pip-version-check --progress-bar on -r requirements.txt
	@touch $@

book: $(VENV)/.ready ## build the site: runs every notebook, warnings are errors
	$(PY) tools/build_book.py

book-solutions: $(VENV)/.ready ## the instructors' site, exercises solved, into _build/solutions
	$(PY) tools/build_solutions.py

serve: book ## build the site and open it
	$(PY) tools/serve_book.py

check: $(VENV)/.ready ## format, lint, types; of JavaScript too where Node is
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/pyright
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory check-javascript; else echo "JavaScript was not checked: no npm here (Debian and Ubuntu: apt-get install nodejs npm)"; test "$(REQUIRE_NODE)" != 1; fi

.PHONY: check-javascript
check-javascript: node_modules/.ready
	npm run --silent check

node_modules/.ready: package.json package-lock.json
	npm ci --no-audit --no-fund
	@touch $@

test: $(VENV)/.ready ## all tests: library, kernels, shapes, notebooks, exercises, site
	@echo "== 1/6 library, exercises, repository"
	$(PYTEST) -n 2 --ignore=tests/grading --ignore=tests/site --ignore=tests/widgets tests
	@echo "== 2/6 a class's work, graded in a sandbox"
	$(PYTEST) -n 2 --dist loadfile -rs tests/grading
	@echo "== 3/6 the GPU's kernels, interpreted on the CPU"
	TRITON_INTERPRET=1 $(PYTEST) -n 2 $(INTERPRETED)
	@echo "== 4/6 the same library tests with every shape in every signature executed"
	$(PYTEST) -n 2 --jaxtyping-packages=lessons_lib,beartype.beartype -m "not rejects" $(SHAPED)
	@echo "== 5/6 every notebook of the book, cell by cell"
	$(PYTEST) -n 2 --dist loadfile --nbval-lax --nbval-current-env --nbval-cell-timeout=300 book
	@echo "== 6/6 the site, built with warnings as errors and moved in a real browser"
	$(PY) tools/build_book.py
	$(PYTEST) -n 2 -rs tests/site tests/widgets

assignments: $(VENV)/.ready ## write the student notebooks from their masters
	$(PY) tools/release_assignments.py

bench: book ## measure pages and attention on this machine (with a GPU, also benchmarks/flash_gpu.py)
	$(PY) benchmarks/site.py
	$(PY) benchmarks/flash_cpu.py
	$(PY) benchmarks/efficient_cpu.py
	$(PY) benchmarks/generation_cpu.py

screenshot: book ## the picture in the README
	$(PY) tools/screenshot.py

repository: $(VENV)/.ready ## set the repository's address everywhere: make repository URL=https://github.com/me/my-fork
	$(PY) tools/set_repository.py "$(URL)"

clean: ## remove what was built (.venv stays)
	rm -rf _build .pytest_cache .ruff_cache .hypothesis

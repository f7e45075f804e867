# `make demo` runs a real model, `make test` the test suite, `make docs` builds the site.  Each installs what is missing first.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/installed

.PHONY: demo test docs benchmarks clean

demo: $(INSTALLED)
	$(RUN) -m compiler demo

test: $(INSTALLED)
	$(RUN) -m ruff check compiler tests examples benchmarks docs/site
	$(RUN) -m ruff format --check compiler tests examples benchmarks docs/site
	$(RUN) -m mypy
	$(RUN) -m pytest -n auto --maxprocesses 4 --dist worksteal

docs: $(INSTALLED)
	$(RUN) -m pip install -q -c constraints.txt -e '.[docs]'
	$(RUN) -m mkdocs build

benchmarks: $(INSTALLED)
	$(RUN) -m pip install -q -c constraints.txt '.[benchmarks]'
	$(RUN) -m benchmarks

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install -q -c constraints.txt torch==2.13.0
	$(RUN) -m pip install -q -c constraints.txt -e '.[test]'
	touch $(INSTALLED)

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache

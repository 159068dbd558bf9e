# `make run` sets up and runs the default chain; `make test` sets up and passes the tests. Both are safe to repeat.
PYTHON ?= python3
VENV := .venv
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export MLFLOW_DISABLE_TELEMETRY = true
export DVC_NO_ANALYTICS = 1

.PHONY: help setup test e2e run smoke ui lint figure docs

help:  ## list the targets
	@grep -hE '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

setup:  ## virtual environment in .venv, all packages as pinned, a browser
	@PYTHON=$(PYTHON) scripts/setup

run: setup  ## the chain, with the values of params.yaml
	snakemake --cores all

smoke: setup  ## the whole chain in a scratch copy, small enough for CI
	scripts/smoke

test: setup  ## all tests but the end-to-end chain
	python -m pytest -m "not e2e" -n 2 --dist loadfile

e2e: setup  ## the end-to-end chain under both engines
	python -m pytest -m e2e

ui: setup  ## MLflow on the runs, on 127.0.0.1:5000
	guiderail ui

lint: setup  ## what CI also looks at
	ruff check
	ruff format --check
	mypy src benchmarks
	snakefmt --check Snakefile workflow
	snakemake --lint

docs: setup  ## the documentation as a site, in site/index.html
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict

figure:  ## docs/rulegraph.svg again (needs graphviz); edges that follow from others are left out
	snakemake --rulegraph | tred | dot -Tsvg -Grankdir=LR > docs/rulegraph.svg

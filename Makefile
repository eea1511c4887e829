# The commands of the house. A fresh machine needs Python 3.11 or newer, make and git; the rest is made here.
# `make PYTHON=/path/to/python demo` chooses the interpreter.

CANDIDATES := $(PYTHON) python3 python3.13 python3.12 python3.11 python3.14
FIND = for each in $(CANDIDATES); do \
	"$$each" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$each" && break; done
INTERPRETER = $(shell $(FIND))
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo demo-repair serve test check generate docs site format bench clean environment environment-dev

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: environment ## start a server with the embedded model and watch it reason
	@$(BIN)/reasond demo

demo-repair: environment ## watch a failing project being repaired in a sandbox, without a key
	@$(BIN)/reasond demo --repair

serve: environment ## start a development server and keep it running
	@$(BIN)/reasond serve --dev

test: environment-dev ## run everything: what CI runs
	@$(BIN)/python -m scripts.check

check: environment-dev ## run the fast half of the tests, under five minutes
	@$(BIN)/python -m scripts.check --fast

generate: environment-dev ## regenerate the stubs and the descriptor set from proto/, and the blocking client
	@$(BIN)/python -m scripts.generate
	@$(BIN)/python -m scripts.sync_client
	@$(BIN)/python -m scripts.typescript_client generate
	@$(BIN)/python -m scripts.go_stubs
	@$(MAKE) --no-print-directory docs

docs: environment-dev ## regenerate the generated parts of docs/
	@$(BIN)/python -m scripts.docs

site: environment-dev ## build the documentation as a site with search, in build/site/site
	@$(BIN)/python -m scripts.site

format: environment-dev ## format the code and the protos, and mend what ruff can mend
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix
	@$(BIN)/buf format -w

bench: environment-dev ## run every benchmark; results go to benchmarks/results/
	@for each in startup deltas streams unary wire_cost upstream_wait balancing call_profile before_after bounded_vs_plain repair_search attacks scale held_streams turn_cost suspended evaluating; do echo "== $$each"; $(BIN)/python -m "benchmarks.$$each" || exit 1; done

clean: ## remove the environment, the caches and everything built
	@rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

environment environment-dev:
	@interpreter="$(INTERPRETER)"; if [ -z "$$interpreter" ]; then \
		echo "reasond needs Python 3.11 or newer; none of these is: $(strip $(CANDIDATES))." >&2; \
		echo "Install one, or name it: make PYTHON=/path/to/python $(MAKECMDGOALS)" >&2; exit 1; fi; \
	"$$interpreter" scripts/environment.py $(if $(filter environment-dev,$@),--dev)

# The checkout's front door. Everything happens in .venv, which is made on first use: `make run` installs the broker
# alone, and the other targets add the developer's tools, Spark and a Java to the same folder when they are first used.
#
#   make run             start a broker with its name server, in the foreground
#   make test            format, lint, types and tests; what continuous integration runs
#   make test-long       the same, at the counts meant for a night rather than a coffee
#   make bench-rocketmq  Ropewalk and Apache RocketMQ under the same load, as a table (needs java and mvn)
#   make format          let ruff rewrite what it can
#   make docs            write the generated pages of docs/ again
#   make clean           remove what these commands made, data of `make run` excepted

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BROKER_INSTALLED := $(VENV)/.installed
TOOLS_INSTALLED := $(VENV)/.installed-tools

.PHONY: run test test-long bench-rocketmq format docs clean
.DEFAULT_GOAL := test

run: $(BROKER_INSTALLED)
	@exec $(BIN)/ropewalk broker

test: $(TOOLS_INSTALLED)
	@$(BIN)/python -m tools.check

test-long: $(TOOLS_INSTALLED)
	@$(BIN)/python -m tools.check --long

bench-rocketmq: $(TOOLS_INSTALLED)
	@$(BIN)/python -m tests.bench.peers.rocketmq

format: $(TOOLS_INSTALLED)
	@$(BIN)/python -m tools.check --fix

docs: $(TOOLS_INSTALLED)
	@$(BIN)/python -m tools.documents

clean:
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each missing piece is named together with the package that brings it, because the error that
# Python gives for a missing ensurepip sends people looking in the wrong place.
$(BIN)/python:
	@command -v git >/dev/null || { echo "git is missing: apt install git" >&2; exit 1; }
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: apt install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$$($(PYTHON) --version) is too old: Ropewalk needs 3.11; try make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
		|| { echo "python's venv is missing: apt install python3-venv" >&2; exit 1; }
	@echo "making $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)

$(BROKER_INSTALLED): pyproject.toml | $(BIN)/python
	@echo "installing ropewalk into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

# The same install with more beside it, at once; a broker that runs from this .venv goes on undisturbed.
$(TOOLS_INSTALLED): pyproject.toml | $(BIN)/python
	@echo "installing ropewalk, the linters, the test tools, Spark and a Java into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,spark]'
	@touch $(BROKER_INSTALLED) $@

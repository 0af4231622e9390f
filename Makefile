# `make` lists the targets. `install` and `bench` use the Cargo profile release, all others dev: target/debug/forebay.
export PATH := $(CURDIR)/.tools/bin:$(PATH)

TARGET := $(or $(CARGO_TARGET_DIR),target)
FOREBAY := "$(TARGET)/debug/forebay"
RELEASE := "$(TARGET)/release/forebay"
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 600
# A tmpfs: a disk makes the guard's figures depend on what was removed from it before.
BENCH_TMPDIR ?= $(if $(wildcard /dev/shm/.),/dev/shm,/tmp)
RUN_TESTS = $(if $(shell command -v cargo-nextest),cargo nextest run,cargo test)

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' Makefile

tools: ## install missing tools (nats-server, redis-server, Python packages) into .tools/
	@infra/tools/setup.sh

clients: tools ## also install the clients and object stores for the tests (Bazel, moto, Azurite, schemathesis, Chromium)
	@infra/tools/clients.sh

build: ## compile the workspace
	cargo build --workspace

binary: ## compile only the forebay binary
	@infra/compile/compile.py

lab: ## compile only forebay-lab, which forebay bench, conform and sim run
	cargo build -p forebay-lab

compile-budget: ## compile the forebay binary, and fail if an empty target folder costs more than tests/tidy/budget.toml allows
	@infra/compile/compile.py --budget tests/tidy/budget.toml

lint: ## check formatting and run clippy; warnings are errors
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

check-rules: ## check the rules of Prometheus with their tests, and the expressions of the dashboards
	@infra/tools/prometheus.sh
	@infra/prometheus/check.sh

# All programs in one run of cargo, which keeps both processors busy; the tools are installed meanwhile.
test: ## run every test against a real nats-server and redis-server
	@infra/tools/beside.sh "$(MAKE) -s clients check-rules" "cargo build --workspace --all-targets"
	$(RUN_TESTS) --workspace

chaos: tools build ## run the chaos tests in their long form: FOREBAY_CHAOS_MINUTES=4
	FOREBAY_CHAOS=long $(RUN_TESTS) --workspace chaos

secure: tools build ## run the whole-system tests on servers that admit only those who have a key
	FOREBAY_TEST_SECURE=1 $(RUN_TESTS) --workspace --test system

# One target after the other: they share the memory that is watched.
fuzz: ## give wrong inputs to each parser of what strangers send, for FUZZ_SECONDS=600 each
	FOREBAY_FUZZ_SECONDS=$(FUZZ_SECONDS) FOREBAY_FUZZ_SEED=$$(date +%s) \
	  cargo test -p fuzz-tests --test fuzz -- --nocapture --test-threads 1

attacks: tools build ## run the tests of attacks, and write their results into docs/security.md
	@infra/security/attacks.sh

permissions: tools clients build ## run the tests of whole systems, and compare the subjects that each role used with its rights
	@infra/security/permissions.sh

e2e: tools build ## run all end-to-end tests: Bazel, BuildStream and a browser against a real farm
	@infra/tools/clients.sh --all
	@infra/tools/image.sh
	FOREBAY_E2E=all $(RUN_TESTS) -p e2e-tests -p browser-tests

lighthouse: tools binary ## rate five pages with Lighthouse; fails below 95 of 100
	@infra/tools/clients.sh --all
	python3 infra/pages/lighthouse.py

bench-pages: tools ## measure the pages: lists with 100,000 builds, a log of 500 MB, 1,000 watchers
	@infra/tools/clients.sh
	cargo build --release -p forebay
	python3 infra/pages/measure.py

screenshots: tools binary ## take the pictures of the README again
	@infra/tools/clients.sh
	python3 infra/pages/screenshots.py

bench: tools ## measure builds, scheduling, actions, the store and logs on this machine
	cargo build --release -p forebay -p forebay-lab
	$(RELEASE) bench builds --queued 1000000
	$(RELEASE) bench scheduling
	$(RELEASE) bench workers
	cargo run -q --release -p occupancy --example fit
	lua=$$(mktemp -d) && trap "rm -rf '$$lua'" EXIT && infra/demo/fetch.sh lua "$$lua" && \
	  $(RELEASE) bench workspaces --project "$$lua" --make "make -f plain.mk" \
	  --targets all --targets src/lua --targets src/luac,src/liblua.a --record "$$lua/builds.jsonl" && \
	  cargo run -q --release -p occupancy --example recorded -- "$$lua/builds.jsonl" && \
	  $(RELEASE) bench actions --project "$$lua"
	$(RELEASE) bench cas
	$(RELEASE) bench archive
	$(RELEASE) bench traces
	$(RELEASE) bench log
	$(RELEASE) bench images
	$(RELEASE) bench stability

count-budget: tools binary lab ## fail if builds or actions cost more messages than tests/tidy/budget.toml allows
	TMPDIR="$(BENCH_TMPDIR)" $(FOREBAY) bench guard --counts tests/tidy/budget.toml --seconds 1

bench-guard: tools ## fail if a release binary is slower than docs/benchmarks.json says
	cargo build --release -p forebay -p forebay-lab
	TMPDIR="$(BENCH_TMPDIR)" $(RELEASE) bench guard

bench-baseline: tools ## write docs/benchmarks.json: the rates of a release binary on this machine
	cargo build --release -p forebay -p forebay-lab
	TMPDIR="$(BENCH_TMPDIR)" $(RELEASE) bench guard --write "$$(git describe --always --dirty --abbrev=12)"

demo: ## start a farm on this machine and compile zlib, bzip2 and Lua on it, then on one that is locked
	@python3 infra/demo/prepare.py
	python3 infra/demo/demo.py
	python3 infra/demo/demo.py --secure

schemas: binary ## write the JSON Schemas of the messages to docs/schemas
	$(FOREBAY) schema --write docs/schemas

install: ## compile an optimised binary and install it to PREFIX (/usr/local)
	@infra/compile/compile.py --release --budget tests/tidy/budget.toml
	install -D $(RELEASE) "$(DESTDIR)$(PREFIX)/bin/forebay"

install-lab: ## the same for forebay-lab
	cargo build --release -p forebay-lab
	install -D $(RELEASE)-lab "$(DESTDIR)$(PREFIX)/bin/forebay-lab"

clean: ## remove build outputs, keep .tools/
	cargo clean

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help tools clients build binary lab lint check-rules test chaos secure fuzz attacks permissions e2e lighthouse bench bench-pages screenshots compile-budget count-budget bench-guard bench-baseline demo schemas install install-lab clean

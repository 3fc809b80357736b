# Two commands do everything on a fresh Debian 12: `make run` and `make test`.
CARGO ?= cargo

.PHONY: run test check build bench deps-build deps-run deps-test deps-bench clean

build: deps-build ## the release binaries
	$(CARGO) build --release --bins

run: deps-run build ## a switch with a private database and traffic one can watch; Ctrl-C ends it
	target/release/weft demo

check: deps-build ## format, lints, tidy, unit tests: under five minutes
	$(CARGO) fmt --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) run -q -p xtask -- tidy
	$(CARGO) run -q -p xtask -- layers
	$(CARGO) test -q --workspace --lib --bins

test: deps-test check build ## everything
	$(CARGO) test -q --workspace --test '*'

deps-build:
	@scripts/deps.sh build
deps-run:
	@scripts/deps.sh run
deps-test:
	@scripts/deps.sh test

clean:
	$(CARGO) clean

bench: deps-bench ## packet speed beside OVS-DPDK and testpmd (root; a machine to itself): bench/results/
	$(CARGO) build --release -p weftd
	$(CARGO) build --release -p port-dpdk --example io
	scripts/bench.py
deps-bench:
	@scripts/deps.sh bench

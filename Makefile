# Two commands do everything on a fresh Debian 12: `make run` and `make test`.
CARGO ?= cargo

.PHONY: run test deb test-deb test-avx512 soak fuzz sanitize check build bench bench-quick deps-build deps-run deps-test deps-bench clean

build: deps-build ## the release binaries
	@echo "weft: building; the first time takes minutes, and on a terminal cargo says how much is left"
	$(CARGO) build --release --bins

run: deps-run build ## a switch with a private database and traffic one can watch; Ctrl-C ends it
	target/release/weft demo

check: deps-build ## format, lints, tidy, unit tests: under five minutes
	$(CARGO) fmt --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) run -q -p xtask -- tidy
	$(CARGO) run -q -p xtask -- layers
	$(CARGO) run -q -p xtask -- names
	$(CARGO) run -q -p xtask -- docs
	$(CARGO) run -q -p xtask -- circles
	$(CARGO) test -q --workspace --lib --bins

test: deps-test check build ## everything
	$(CARGO) test -q --workspace --no-fail-fast --test '*'
	scripts/sanitize.sh short

test-avx512: ## the AVX-512 kernels in an emulator, where the CPU has none: minutes (docs/perf/validation.md)
	@scripts/deps.sh avx512
	scripts/avx512.sh --release --config profile.release.lto=false

soak: deps-test ## ten minutes of everything coming and going under traffic (root)
	WEFT_SOAK_SECONDS=600 $(CARGO) test --release -p weftd --test soak -- --nocapture

TARGET ?= all
SECONDS ?= 60
fuzz: deps-build ## every fuzz target (TARGET=...) under libFuzzer for SECONDS=60 each; `make test` replays the seeds
	scripts/fuzz.sh $(TARGET) $(SECONDS)

sanitize: deps-build ## tests under the address and thread sanitizers, and Miri, where there is a nightly compiler
	scripts/sanitize.sh full

deps-build:
	@scripts/deps.sh build
deps-run:
	@scripts/deps.sh run
deps-test:
	@scripts/deps.sh test

clean:
	$(CARGO) clean

deb: build ## target/deb/weft_VERSION_ARCH.deb for Debian 12: `weft enable` puts it into ovs-vswitchd's place
	scripts/deb.sh
test-deb: build ## the package in a bare Debian with systemd (debootstrap): minutes, as root
	@scripts/deps.sh deb
	scripts/test-deb.sh

NAME ?= quick
bench: deps-bench ## an experiment (NAME=..., see `weft bench list`) beside OVS-DPDK and testpmd; as root
	$(CARGO) build --release -p weft -p weftd
	target/release/weft bench run $(NAME) $(ARGS)
bench-quick: ## the set for every performance change, under ten minutes: bench/results/
	$(MAKE) bench NAME=quick
deps-bench:
	@scripts/deps.sh bench

# Every entry point of users, developers and CI. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
# As root on a build host the lab and the BPF tests run directly; otherwise they are
# raised. `test`, `test-long` and `gen` build what they run: cargo must be on root's PATH.
SUDO := $(if $(filter 0,$(shell id -u)),,sudo -E)
# What `causeway version` calls the build.
export CAUSEWAY_BUILD ?= $(shell git rev-parse --short HEAD 2>/dev/null)

.PHONY: help setup build-setup build build-dev deb sbom image demo lab sim test test-long lint bench bench-dataplane bench-server bench-growth bench-reader soak fuzz gen clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what tests need, too (Debian packages), and check root, BPF and cargo
	@scripts/setup test

build-setup:
	@scripts/setup

build: build-setup ## build the release binary, target/release/causeway
	$(CARGO) build --release --locked --package causeway

build-dev: build-setup # the laboratory's binary, too
	$(CARGO) build --release --locked --package causeway --package causeway-lab

deb: ## build the Debian packages into target/deb
	@scripts/setup deb
	CARGO="$(CARGO)" scripts/deb

sbom: ## list what the packages' binaries are made of, as CycloneDX: target/deb/*.cdx.json
	@command -v cargo-cyclonedx >/dev/null || $(CARGO) install cargo-cyclonedx --locked
	$(CARGO) cyclonedx --quiet --format json --spec-version 1.5 --no-build-deps
	mkdir -p target/deb
	sed 's,path+file://$(CURDIR),path+file:///causeway,g' crates/causeway/causeway.cdx.json >target/deb/causeway.cdx.json
	sed 's,path+file://$(CURDIR),path+file:///causeway,g' crates/kubernetes/causeway-kubernetes.cdx.json >target/deb/causeway-kubernetes.cdx.json
	find crates dev -name '*.cdx.json' -delete

image: build-setup ## build a container image of them, target/deb/causeway-image.tar (as root)
	@scripts/setup image
	$(CARGO) build --release --locked --package causeway --package causeway-kubernetes
	BINARY=$(or $(CARGO_TARGET_DIR),target)/release/causeway $(SUDO) scripts/image

demo: build-dev ## the whole thing on this machine; results in target/demo/
	$(SUDO) target/release/causeway-lab demo --out target/demo

lab: build-dev ## the laboratory: make lab ARGS="run NAME --json FILE"; without ARGS, its scenarios
	@scripts/setup $(filter everyday fleet shadow,$(ARGS))
	$(SUDO) target/release/causeway-lab $(or $(ARGS),list)

sim: build-dev ## models in virtual time: make sim ARGS="control --seeds 3"
	target/release/causeway-lab sim $(or $(ARGS),--help)

test: setup ## build and run every test (needs root and BPF)
	$(CARGO) fmt --all --check
	scripts/layers
	scripts/circles
	scripts/names
	scripts/page check
	CARGO="$(CARGO)" $(SUDO) scripts/test

test-long: setup build-dev ## the campaigns of which `make test` runs a slice, at full length: hours
	CARGO="$(CARGO)" $(SUDO) scripts/test-long $(ARGS)

# Empty where RustSec's database cannot be fetched.
ADVISORIES ?= advisories

lint: setup ## format, clippy, who may know whom, names; advisories, licences and sources of dependencies
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy --package causeway --package causeway-kubernetes --locked -- -D warnings # without the laboratory's features
	$(CARGO) clippy --package causeway-quic-lb --locked -- -D warnings # without the feature that the laboratory asks for
	scripts/layers
	scripts/circles
	scripts/names
	scripts/page check
	@command -v cargo-deny >/dev/null || $(CARGO) install cargo-deny --locked
	$(CARGO) deny --all-features check $(ADVISORIES) bans licenses sources

bench: bench-dataplane bench-server bench-growth bench-reader ## all benchmarks; results in bench/out/

bench-dataplane: build-dev ## cost per packet, repeated and live; bench/out/dataplane.json
	mkdir -p bench/out
	$(SUDO) target/release/causeway-lab bench dataplane --json bench/out/dataplane.json
	$(SUDO) target/release/causeway-lab run packet-cost --json bench/out/packet-cost.json
	$(SUDO) target/release/causeway-lab run packet-rate --json bench/out/packet-rate.json

bench-server: build-dev ## cost per segment in a server's programs; bench/out/server.json
	mkdir -p bench/out
	$(SUDO) target/release/causeway-lab bench server --json bench/out/server.json

bench-growth: build-dev ## cost per packet against flows, VIPs, reals; bench/out/growth.json and plots
	mkdir -p bench/out
	$(SUDO) target/release/causeway-lab bench growth --json bench/out/growth.json --svg bench/out

bench-reader: build-dev ## packets per second of `causeway measure`; bench/out/reader.json
	@scripts/setup bench
	$(CARGO) bench --locked --package causeway-bench --bench reader

soak: setup ## a million seeds of the multipath transport's simulation
	SEEDS=0..1000000 $(CARGO) test --profile quick --locked --package causeway-bifrost --test simulation -- --nocapture

fuzz: build-setup ## fuzz all that is read, a minute each (EACH=3600: an hour); needs cargo-fuzz and a nightly toolchain
	CARGO="$(CARGO)" scripts/fuzz $(ARGS)

gen: setup ## regenerate committed files; leaves a clean tree when they are current
	scripts/page build
	CARGO="$(CARGO)" $(SUDO) scripts/gen

clean: ## remove build products and results
	$(CARGO) clean
	rm -rf bench/out

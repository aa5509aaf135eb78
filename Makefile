# vmlane. Two commands on a fresh machine: `make demo` and `make test`.
# Everything a target needs is installed by scripts/bootstrap.sh and by `vmlane lab setup`.

TRIPLE  := x86_64-unknown-linux-gnu
BIN     := target/$(TRIPLE)/release/vmlane
# As it is packaged.
DIST    := $(CURDIR)/target/$(TRIPLE)/dist/vmlane
FULL    ?= 0
ONLY    ?=
FUZZ_SECONDS ?= 60
export VMLANE_BIN := $(CURDIR)/$(BIN)

.PHONY: all help bootstrap build dist setup demo test test-quick test-unit test-guests acceptance soak bench experiments fuzz coverage lint docs picture install package release image clean

all: build

help:
	@echo 'make demo    two VMs, VMCI sockets against TCP: a table, out/demo/report.html (FULL=1: longer, three runs)'
	@echo 'make test    make lint, unit, property and real-guest tests (LANES= processes at a time): logs and times in out/test/'
	@echo 'make test-quick  no guests: what has changed since the last commit (SINCE=COMMIT), and what depends on it'
	@echo 'make test-unit, make test-guests  either half of make test (ONLY=vmci,nics for some beds or modules of guests)'
	@echo 'make acceptance  the real-guest tests in their long form: a line a promise, out/acceptance/ (ONLY=survival,nics'
	@echo '             for some modules; what passed is not repeated until sources change, AGAIN=1 does; LANES=1 at a time)'
	@echo 'make soak    200 deaths of the daemon at random moments, 50 under load, an hour beside guests that come and go,'
	@echo '             memory under each attack of synthetic guests (VMLANE_ATTACK_MINUTES=10) and under all of them'
	@echo 'make experiments  the plans of experiments/: out/experiments/ (QUICK=1: thin slices, some minutes)'
	@echo 'make bench   the engine without VMs: ratios, out/bench/latest.json (ONLY=vmci.,host. for some rows;'
	@echo '             AGAINST=BINARY: in pairs with the vmlane-enginebench of another build)'
	@echo 'make fuzz    every fuzz target for FUZZ_SECONDS (default 60)'
	@echo 'make coverage  lines that the tests without VMs reach, a crate at a time: out/coverage/'
	@echo 'make lint    formatting, clippy, docs, licences'
	@echo 'make docs    the guide as a site: out/docs/index.html'
	@echo 'make picture  docs/architecture.svg and docs/chart.svg from their sources'
	@echo 'make keys      the table of all keys in docs/guide/configuration.md, from crates/config/src/raw.rs'
	@echo 'make package  out/package/*.deb, judged by lintian (PACKAGE_VERSION=, DEBEMAIL=)'
	@echo 'make release  out/release/: the package, a tarball, an SBOM and checksums, the same bytes from any clone of a commit'
	@echo 'make image    out/image/vmlane.oci.tar, an OCI image of the program alone: docs/guide/network-labs.md'
	@echo 'make install  what make build made, below PREFIX (default /usr/local); DESTDIR= goes in front of it'

bootstrap:
	@scripts/bootstrap.sh

build: bootstrap
	@echo '==> building vmlane (release, static), and what labs with faults or a PCI bus of User Mode Linux need'
	@cargo build --release --locked -p vmlane-cli -p vmlane-labdaemon

setup: build
	@echo '==> QEMU, kernels and the guest image (cached after the first time)'
	@$(BIN) lab setup

demo: setup
	@$(BIN) demo --out out/demo $(if $(filter 1,$(FULL)),--full)

# What tests use of the host, beside what building needs.
FOR_UNITS  := fish libvirt-clients libxml2-utils systemd tshark zsh
FOR_GUESTS := ethtool socat ncat python3 openssh-client chromium tshark
# Built beside the program, so that what both use is compiled once.
RUNTESTS   := cargo build --quiet --locked --release -p vmlane-cli -p vmlane-runtests && target/$(TRIPLE)/release/vmlane-runtests

test: bootstrap
	@scripts/bootstrap.sh $(FOR_UNITS) $(FOR_GUESTS)
	@$(RUNTESTS) all

test-quick: bootstrap
	@scripts/bootstrap.sh $(FOR_UNITS)
	@$(RUNTESTS) quick

test-unit: bootstrap
	@scripts/bootstrap.sh $(FOR_UNITS)
	@$(RUNTESTS) units

test-guests: setup
	@scripts/bootstrap.sh $(FOR_GUESTS)
	@$(RUNTESTS) guests

# Hours. Resumable: what passed is not run again until what is built changes.
acceptance: setup
	@scripts/bootstrap.sh apparmor binutils buildah debootstrap lintian systemd-container $(FOR_GUESTS) prometheus dosfstools mtools syslinux
	@$(RUNTESTS) acceptance

# Hours. VMLANE_SOAK_MINUTES=60 is the default of the part with guests that come and go; VMLANE_SEED repeats a run's moments.
# The model of a stream's notices explores longer streams and larger rings; 100,000 worlds of switches and wires are tried. Some 30 attacks run for VMLANE_ATTACK_MINUTES=10 each, then all of them together for an hour; VMLANE_ATTACK=virtio: some.
soak: setup
	@scripts/bootstrap.sh socat ncat python3
	@for module in survival soak neighbour; do \
	  VMLANE_TESTS=full VMLANE_MODULE=$$module cargo test --locked --release -p vmlane-tests --test promises || exit 1; \
	done
	@VMLANE_MODEL=full cargo test --locked --release -p vmlane-device --test it interleavings
	@VMLANE_MODEL=full cargo test --locked --release -p vmlane-switch --test it separation
	@VMLANE_ATTACK_MINUTES=$${VMLANE_ATTACK_MINUTES:-10} cargo test --locked --release -p vmlane-daemon --test it neighbours -- --nocapture

bench: build
	@cargo build --quiet --locked --release -p vmlane-cli -p vmlane-enginebench
	@target/$(TRIPLE)/release/vmlane-enginebench --out out/bench $(if $(ONLY),--only $(ONLY)) $(if $(AGAINST),--against $(AGAINST))

experiments: setup
	@scripts/bootstrap.sh ethtool
	@code=0; for plan in experiments/*/plan.toml; do \
	  name=$$(basename $$(dirname $$plan)); echo "==> experiment $$name"; \
	  $(BIN) lab draw $$(dirname $$plan) || code=$$?; \
	  $(BIN) lab run $$plan --out out/experiments$(if $(filter 1,$(QUICK)),-quick)/$$name $(if $(filter 1,$(QUICK)),--quick) || code=$$?; \
	done; \
	echo '==> experiment esxi-throughput-2013: the ladder, found by vmlane doctor'; \
	ladder=$$PWD/out/experiments$(if $(filter 1,$(QUICK)),-quick)/esxi-throughput-2013/ladder.md; mkdir -p "$$(dirname "$$ladder")"; \
	VMLANE_TESTS=full VMLANE_LADDER=$$ladder $(if $(filter 1,$(QUICK)),VMLANE_QUICK=1) cargo test --quiet --locked --release -p vmlane-tests \
	  --test promises the_ladder || code=$$?; \
	exit $$code

fuzz: bootstrap
	@FUZZ_SECONDS=$(FUZZ_SECONDS) scripts/fuzz.sh

coverage: bootstrap
	@scripts/coverage.sh

lint: bootstrap
	@scripts/lint.sh

# Needs no guest. mdBook is built into the cache the first time.
docs: build
	@scripts/docs.sh

# The table of keys in the guide, from the keys themselves.
.PHONY: keys
keys:
	@VMLANE_DRAW=1 cargo test --quiet --locked --release -p vmlane-config --lib the_table_in_the_guide

# The pictures of the guide and of README.md, from their sources and from rows of experiments/.
picture:
	@VMLANE_DRAW=1 cargo test --quiet --locked --release -p vmlane-tests --test promises the_picture

# The same bytes wherever it is built: no path of this machine gets into the program.
WITHOUT_PATHS := target.$(TRIPLE).rustflags=['--remap-path-prefix=$(CURDIR)=/vmlane', '--remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)=/cargo']

dist: bootstrap
	@echo '==> building vmlane as it is packaged (static, optimized as a whole)'
	@VMLANE_COMMIT=$$(git describe --always --dirty '--exclude=*' --abbrev=10 2>/dev/null || true) \
		cargo build --profile dist --locked -p vmlane-cli --config "$(WITHOUT_PATHS)"

package: dist
	@scripts/bootstrap.sh apparmor binutils lintian
	@VMLANE_BIN="$(DIST)" scripts/package.sh

# Of a commit, and with what is committed alone.
release: dist
	@scripts/bootstrap.sh apparmor binutils jq lintian
	@VMLANE_BIN="$(DIST)" scripts/docs.sh
	@VMLANE_BIN="$(DIST)" scripts/release.sh

image: dist
	@scripts/bootstrap.sh binutils buildah
	@VMLANE_BIN="$(DIST)" scripts/image.sh

# Without a build before it, so that root need not build.
install:
	@scripts/install.sh

clean:
	@cargo clean
	@rm -rf out fuzz/target

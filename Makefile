# The everyday commands. `make help` lists them. All work is done by cargo; `cargo xtask` is the project's own helper.

CARGO ?= cargo
# One job a processor, but no more than one for each 2 GiB of memory: linking test programs side by side needs it.
JOBS ?= $(or $(CARGO_BUILD_JOBS),$(shell awk -v n="$$(nproc)" '/^MemTotal/ {m = int($$2 / 2097152); print (m < 1) ? 1 : (m < n) ? m : n}' /proc/meminfo))
export CARGO_BUILD_JOBS := $(JOBS)
CAIRN := $(or $(CARGO_TARGET_DIR),target)/release/cairn

.DEFAULT_GOAL := all
.PHONY: all build release packages sdk hadoop test test-apps chaos soak upgrade-test check demo bench fuzz-corpus miri clean help prepare prepare-tests

all: build ## the same as build

build: prepare ## compile everything for development
	$(CARGO) build --workspace --locked

release: prepare ## compile the optimized binary, target/release/cairn; its symbols are beside it in cairn.debug
	$(CARGO) build --release --locked --package cairn
	@scripts/strip.sh $(CAIRN)

packages: $(if $(PORTABLE),prepare,release) ## .deb, .rpm and a tarball with checksums, in target/packages (PORTABLE=1: for glibc 2.17 and newer)
	$(CARGO) xtask notices $(or $(CARGO_TARGET_DIR),target)/notices.txt
	@bash -c 'set -o pipefail; program=$(if $(PORTABLE),$$(CARGO="$(CARGO)" scripts/portable.sh | tail -n 1),$(CAIRN)) && scripts/packages.sh "$$program"'

sdk: prepare ## libcairn for C programs and the Python wheel, in target/sdk
	CARGO='$(CARGO)' scripts/sdk.sh

hadoop: prepare ## the jar for Hadoop and Spark, in target/hadoop (needs a JDK and Maven)
	CARGO='$(CARGO)' scripts/hadoop.sh

test: prepare-tests ## run every test; the last line is the sum
	$(CARGO) xtask test

test-apps: prepare-tests ## git, SQLite, compilers, rsync, tar, PostgreSQL, fio on a mount; Hadoop, distcp, terasort, Spark; pandas, pyarrow, dask, torch (APPS=git,tar, APPS=hadoop or APPS=python for some of them)
	.ci/prepare with-apps
	@case ',$(or $(APPS),all),' in *,all,*|*,hadoop,*) CAIRN_TEST_APPS=hadoop $(CARGO) test --locked --package cairn --test process -- \
	    --exact hadoop::applications --nocapture ;; esac
	@case ',$(or $(APPS),all),' in *,all,*|*,python,*) .ci/prepare with-torch && CAIRN_TEST_APPS=python $(CARGO) test --locked --package cairn \
	    --test process -- --exact python::applications --nocapture ;; esac
	@[ '$(APPS)' = hadoop ] || [ '$(APPS)' = python ] || bash -c 'set -o pipefail; CAIRN_TEST_APPS=$(or $(APPS),all) $(CARGO) test --locked --package cairn --test process -- \
	    --exact mount::apps::applications --nocapture | tee /dev/stderr | grep "^applications: " > /dev/null'

chaos: prepare-tests ## kill, stop and cut off real processes, fill and lose disks under checked clients (MINUTES=n, CAIRN_SEED=n)
	@bash -c 'set -o pipefail; CAIRN_CHAOS_MINUTES=$(or $(MINUTES),2) $(CARGO) test --locked --package cairn --test process -- \
	    --exact chaos::chaos --nocapture | tee /dev/stderr | grep "^chaos: " > /dev/null'

soak: prepare-tests ## what is too long for `make test`: chaos, writers of records under kills, changed frames, a database in snapshots, then seeds of whole clusters (SOAK_MINUTES=n, SOAK_WRITERS=n, SOAK_SNAPSHOTS=n, SOAK_SEEDS=n)
	@CARGO='$(CARGO)' SOAK_MINUTES='$(or $(SOAK_MINUTES),10)' SOAK_WRITERS='$(or $(SOAK_WRITERS),200)' SOAK_SNAPSHOTS='$(or $(SOAK_SNAPSHOTS),100)' SOAK_SEEDS='$(or $(SOAK_SEEDS),300)' scripts/soak.sh

upgrade-test: prepare-tests ## upgrade a cluster of real processes from an earlier build (PREVIOUS=<git revision>)
	@CARGO='$(CARGO)' PREVIOUS='$(PREVIOUS)' scripts/upgrade-from.sh

check: ## formatting, clippy, layers, sizes, licences, advisories, links
	.ci/prepare with-lints
	$(CARGO) xtask check

demo: release ## store real files in a cluster, kill parts of it, compare all bytes (DATA=dir for your own files)
	CAIRN=$(CAIRN) scripts/demo.sh

bench: release ## measure metadata and data paths of a cluster on this machine
	CAIRN=$(CAIRN) scripts/bench.sh

fuzz-corpus: prepare ## feed every committed fuzz input to its decoder (tests with `corpus` in their names)
	$(CARGO) xtask test -- corpus

miri: ## the erasure kernels' unsafe code under miri (needs a nightly toolchain with miri; says so when there is none)
	scripts/miri.sh

clean: ## remove everything that was built
	$(CARGO) clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

prepare:
	@.ci/prepare

prepare-tests:
	@.ci/prepare with-tests

# `make help` lists what there is.

PREFIX  ?= /usr/local
DESTDIR ?=
CARGO   ?= cargo

# Where cargo builds. `make build` leaves libsluice.so and the tool in $(TARGET)/release.
TARGET  := $(or $(CARGO_TARGET_DIR),target)
# The library is built without LuaJIT of its own: nginx brings Lua.
MODULE  := --no-default-features --features module

# What is installed, and where to.
PROFILE ?= release
BUILT    = $(TARGET)/$(PROFILE)
TO       = $(DESTDIR)$(PREFIX)

export SLUICE_TARGET := $(abspath $(TARGET))

SCRIPTS := $(shell grep -l '^\#!.*bash' .ci/*) benches/flood/run openresty-conf/dev/run \
	openresty-conf/dev/demo openresty-conf/dev/common.sh

.DEFAULT_GOAL := help
.PHONY: help deps run demo test soak bench flood simulate build fast load install uninstall lint \
        format miri memcheck clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '\nSettings:\n'; printf '  %s\n' \
	  'run:     PORT=8080 UPSTREAM=http://host:port CONFIG=sluice.toml STATUS_PORT=9145' \
	  'demo:    DEMO_SECONDS=60 PORT=8080' \
	  'flood:   FLOOD_ONLY="5x-16 10x-16" (benches/flood/run --list), FLOOD_SCALE=0.2 for shorter' \
	  'soak:    SOAK="bounds redis" for some of the files' \
	  'bench:   BENCH_QUICK=1 for a short one; BENCH_ONLY=parts or gateway' \
	  'simulate: SHORT_TURN=1 for a short one that judges nothing' \
	  'install: PREFIX=/usr/local DESTDIR=' \
	  'all:     NGINX_BIN=/path/to/nginx (one with Lua) instead of the one that is found'

# --- to use ----------------------------------------------------------------------------

run: ## serve the gateway on http://127.0.0.1:8080, in front of a demo shop or UPSTREAM
	@.ci/deps build nginx
	@$(MAKE) --no-print-directory build load
	@exec openresty-conf/dev/run

demo: ## a flood against a shop, live: what shoppers get with the gateway and without
	@.ci/deps build nginx redis
	@$(MAKE) --no-print-directory build load
	@exec openresty-conf/dev/demo

build: ## the library and the tool: target/release/libsluice.so, target/release/sluice
	$(call both,release)

install: ## under PREFIX (/usr/local), below DESTDIR if given: what `make build` has built
	@[ -e '$(BUILT)/libsluice.so' ] && [ -e '$(BUILT)/sluice' ] || $(MAKE) --no-print-directory build
	@.ci/check-library '$(BUILT)/libsluice.so'
	install -d '$(TO)/lib' '$(TO)/bin' '$(TO)/share/lua/5.1/resty/sluice' '$(TO)/share/sluice/conf'
	install -m 755 '$(BUILT)/libsluice.so' '$(TO)/lib/libsluice.so.new'
	mv -f '$(TO)/lib/libsluice.so.new' '$(TO)/lib/libsluice.so'
	install -m 755 '$(BUILT)/sluice' '$(TO)/bin/sluice'
	install -m 644 lua/resty/sluice.lua '$(TO)/share/lua/5.1/resty/sluice.lua'
	install -m 644 lua/resty/sluice/*.lua '$(TO)/share/lua/5.1/resty/sluice/'
	install -m 644 openresty-conf/sluice.toml '$(TO)/share/sluice/conf/'
	for conf in sluice.conf nginx.conf; do \
	  sed 's#/usr/local/#$(PREFIX)/#g' "openresty-conf/$$conf" > '$(TO)/share/sluice/conf/'"$$conf" \
	    && chmod 644 '$(TO)/share/sluice/conf/'"$$conf" || exit 1; \
	done

uninstall: ## what install put under PREFIX
	rm -f '$(TO)/lib/libsluice.so' '$(TO)/bin/sluice' '$(TO)/share/lua/5.1/resty/sluice.lua'
	rm -rf '$(TO)/share/lua/5.1/resty/sluice' '$(TO)/share/sluice'

# --- to trust --------------------------------------------------------------------------

test: ## install what is missing and run the tests that decide a landing
	@.ci/deps build nginx redis test
	$(call both,fast)
	@.ci/rust-tests
	@.ci/checks
	SLUICE_LIB=$(SLUICE_TARGET)/fast SLUICE_LUA=$(CURDIR)/lua SLUICE_BIN=$(SLUICE_TARGET)/fast/sluice t/run

soak: ## the long tests
	@.ci/deps build nginx redis test
	$(call both,fast)
	SLUICE_LIB=$(SLUICE_TARGET)/fast SLUICE_LUA=$(CURDIR)/lua SLUICE_BIN=$(SLUICE_TARGET)/fast/sluice t/run --soak $(SOAK)

bench: ## every benchmark, ratios side by side from one run
	@.ci/deps build nginx redis test bench
	@$(MAKE) --no-print-directory build
	@.ci/bench

flood: ## the load test, 45 minutes: floods of 5 and 10 times the normal load, judged
	@.ci/deps build nginx redis flood
	@$(MAKE) --no-print-directory build load
	@.ci/flood

simulate: ## the pools' queue and limiter with a simulated clock: tables and goals
	@.ci/deps build
	$(CARGO) run --profile bench --bin simulate

memcheck: ## nginx with the library under valgrind
	@.ci/deps build nginx redis bench
	$(call both,fast)
	@.ci/memcheck

miri: ## shared memory and C boundary without nginx and kernel under miri (needs a nightly toolchain)
	@.ci/miri

lint: ## rustfmt, clippy, luacheck, shellcheck, and what keeps the layers apart
	@.ci/deps build lint
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets -- -D warnings
	@# With the benches, so that dependencies have the features of the line above.
	$(CARGO) clippy --lib --benches $(MODULE) -- -D warnings
	luacheck --quiet lua t benches
	shellcheck -x -P SCRIPTDIR $(SCRIPTS)
	.ci/layers --self-test
	.ci/layers

# --- parts of the above ----------------------------------------------------------------

deps: ## install all that any target needs (.ci/packages), or say what that is
	@.ci/deps build nginx redis test bench lint

fast: ## as build, without link-time optimisation and with assertions, for tests
	$(call both,fast)

load: ## the load generator and the demo shop: target/release/flood
	$(CARGO) build --release $(MODULE) --bin flood

format: ## rustfmt
	$(CARGO) fmt

clean:
	$(CARGO) clean

# $(call both,PROFILE): the library and the tool in one go. The tool needs no Lua, so both are
# built without one; the check makes sure that the library has none inside.
define both
$(CARGO) build --profile $(1) --lib --bin sluice $(MODULE)
@.ci/check-library $(TARGET)/$(1)/libsluice.so
endef

# Two commands to start with: "make demo" shows everything, "make test" proves it.
# Needs Go 1.26, make, git and a C compiler; no root but for e2e, openstack, ceph
# and, to install a server where there is none, postgres and bench AREA=ledger.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

ifeq ($(shell command -v go),)
ifneq ($(filter-out help clean,$(or $(MAKECMDGOALS),help)),)
$(error Go is not on PATH: install Go 1.26 or newer from your distribution or go.dev and try again)
endif
endif

KUBE_VERSION := v1.37.2
GOFUMPT      := go run mvdan.cc/gofumpt@v0.12.0
STATICCHECK  := go run honnef.co/go/tools/cmd/staticcheck@v0.8.2
CONTROLLER_GEN := go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0
RUNNER       := go run ./e2e/runner

# The packages that decide and never act. They are tested first: seconds, no server.
PURE := $(wildcard providers quota quota/money quota/focus datasync datasync/seal \
	autoscaler/placement autoscaler/policy autoscaler/plan)

# What takes longest starts before the rest, beside which it waits.
SLOW := ./e2e/stories

# The control plane is the slow part of a build (about 8 minutes from nothing on
# two cores), so it is built once for one state of its inputs and kept.
KUBE_INPUTS = go.mod go.sum $(wildcard e2e/kube/*.go) $(shell go env GOROOT)/VERSION
KUBE_BUILT  = bin/.built/kube-$(shell cat $(KUBE_INPUTS) | sha256sum | cut -c1-16)
CAPI_CRDS   = bin/.built/crds-$(shell sha256sum go.mod | cut -c1-16)

AREAS := planner providers ledger datasync agent sim
GENERATED_SUM = find autoscaler/api charts/spillway/crds -name 'zz_generated*' -o -name '*.yaml' | sort | xargs sha256sum

.PHONY: help build binaries test check bench peers demo e2e openstack ceph postgres lint generate clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: bin/kube bin/crds binaries ## build everything into bin/ (the first time a quarter of an hour on two cores)

bin/kube: $(KUBE_BUILT)
	@ln -f $< $@

$(KUBE_BUILT):
	@mkdir -p bin/.built && rm -f bin/.built/kube-*
	@$(RUNNER) build -o $@.part -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$(KUBE_VERSION)" ./e2e/kube
	@mv $@.part $@

bin/crds: $(CAPI_CRDS)

$(CAPI_CRDS):
	@rm -rf bin/crds bin/.built/crds-* && mkdir -p bin/crds bin/.built
	@dir=$$(go list -m -f '{{.Dir}}' sigs.k8s.io/cluster-api); \
	  if [ -z "$$dir" ]; then go mod download sigs.k8s.io/cluster-api; dir=$$(go list -m -f '{{.Dir}}' sigs.k8s.io/cluster-api); fi; \
	  install -m 0644 "$$dir"/core/config/crd/bases/cluster.x-k8s.io_*.yaml bin/crds/
	@touch $@

binaries:
	@mkdir -p bin
	@$(RUNNER) build -o bin/spillway ./cmd/spillway
	@CGO_ENABLED=0 $(RUNNER) build -o bin/spillway-agent ./cmd/spillway-agent

demo: build ## from nothing to a finished burst Job, on this machine, under 3 minutes when built
	@exec bin/spillway demo

test: build ## run all tests that need no root and say what each part covers
	@$(RUNNER) test $(addprefix ./,$(PURE)) -- $(SLOW) ./...

e2e: postgres openstack ceph ## run the crash and guard stories again, with a real PostgreSQL, OpenStack and Ceph gateway (root)
	@go test -count=1 -timeout 10m -v -run '^TestGuards$$' ./e2e
	@go test -count=1 -timeout 40m -v ./e2e/stories

postgres: ## run all tests of the ledger on a real PostgreSQL, Debian's, with kills and fail-overs
	@e2e/postgres/install.sh
	@go test -count=1 -timeout 30m -tags postgres ./quota/ledger -rapid.checks=50
	@go test -count=1 -tags postgres -run Postgres ./cmd/spillway

openstack: build ## hold the OpenStack driver against a real OpenStack from Debian 12 packages (root, 0.7 GB in bin/.built)
	@go test -count=1 -timeout 40m -v -tags openstack -artifacts -outputdir $(CURDIR)/bin ./e2e/openstack

# The packages' own tests, with real gateways for their stores.
ceph: build ## hold front, gate and stager, and a whole burst, against a real Ceph gateway and the S3 clients of Debian 12 (root, 1 GB in bin/.built)
	@go test -count=1 -p 1 -timeout 40m -tags ceph ./e2e/ceph ./datasync/s3 ./datasync/stager ./datasync/cache
	@go test -count=1 -timeout 20m -v -tags ceph -run '^TestCeph' ./e2e/stories

bench: build ## measure one area and hold it to its goals: make bench AREA=planner (datasync needs rclone, its peer)
	@if [ -z "$(filter $(AREAS),$(AREA))" ]; then \
	  echo "bench: AREA=$(AREA) is unknown; say make bench AREA=$(subst $() ,|,$(AREAS))" >&2; exit 2; fi
	@[ "$(AREA)" != ledger ] || e2e/postgres/install.sh
	@mkdir -p bench-out
	@go run ./e2e/benchgoals $(AREA) bench-out/$(AREA).txt

peers: ## the planner beside karpenter's scheduler: the same pods, types and prices, in a module of its own
	@cd e2e/bench/karpenter && go vet . && go run .

check: lint ## hold the code to its rules: format, vet, staticcheck, architecture, generated code
	@echo "check: architecture and structure"
	@go test -count=1 -run '^Test(Architecture|Structure)' ./e2e
	@echo "check: generated code"
	@before=$$($(GENERATED_SUM)); $(MAKE) --no-print-directory generate; after=$$($(GENERATED_SUM)); \
	  if [ "$$before" != "$$after" ]; then \
	    echo "check: generated code was stale; it is fresh now: look at git diff and commit it" >&2; exit 1; fi
	@echo "check: all good"

# Test code is held to the same rules as the rest (cases: H-37 nomad scheduler/tests).
lint: ## format, vet and staticcheck only
	@status=0; echo "check: gofumpt"; \
	  found=$$($(GOFUMPT) -l .); \
	  if [ -n "$$found" ]; then echo "not formatted, run $(GOFUMPT) -w .:" >&2; echo "$$found" >&2; status=1; fi; \
	  echo "check: go vet"; go vet ./... && go vet -tags openstack ./e2e/openstack && go vet -tags ceph ./e2e/ceph ./e2e/stories ./datasync/... && \
	  go vet -tags postgres ./quota/ledger ./cmd/spillway || status=1; \
	  echo "check: staticcheck"; $(STATICCHECK) ./... && $(STATICCHECK) -tags openstack ./e2e/openstack && $(STATICCHECK) -tags ceph ./e2e/ceph ./e2e/stories ./datasync/... && \
	  $(STATICCHECK) -tags postgres ./quota/ledger ./cmd/spillway || status=1; \
	  exit $$status

generate: ## make deepcopy code and CRDs from autoscaler/api again
	@$(CONTROLLER_GEN) object paths=./autoscaler/api/... crd output:crd:artifacts:config=charts/spillway/crds

clean: ## remove what the other targets made
	@rm -rf bin demo-out bench-out

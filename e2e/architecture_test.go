package e2e

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// mayImport is the architecture: each package and the packages of this module
// that it may import outside its tests. A package without a line does not
// exist. Arrows go one way: cmd -> autoscaler -> the parts -> pure words.
func mayImport() map[string]string {
	return map[string]string{
		"quota/money":  "",
		"quota":        "quota/money",
		"quota/focus":  "quota quota/money",
		"quota/ledger": "quota quota/money",

		"providers":             "quota/money",
		"providers/fake":        "providers quota/money",
		"providers/conformance": "providers quota/money",
		"providers/openstack":   "providers",
		"providers/ec2":         "providers",
		"providers/ec2/ec2fake": "", // a test kit: an endpoint of EC2, from its reference

		"datasync":         "datasync/seal",
		"datasync/seal":    "",
		"datasync/s3wire":  "",
		"datasync/s3":      "datasync datasync/s3wire",
		"datasync/cache":   "datasync datasync/seal datasync/s3 datasync/s3wire",
		"datasync/stager":  "datasync datasync/seal datasync/s3 datasync/s3wire",
		"datasync/transit": "datasync/seal datasync/stager",

		"nodeagent/wipe": "",
		"nodeagent/link": "nodeagent/wipe quota datasync datasync/seal",
		"nodeagent/gpu":  "",
		"nodeagent": "nodeagent/link nodeagent/wipe nodeagent/gpu quota " +
			"datasync datasync/seal datasync/s3 datasync/cache",

		"autoscaler/api/v1alpha1":                "",
		"autoscaler/api/infrastructure/v1alpha1": "",
		"autoscaler/api/controlplane/v1alpha1":   "",
		"autoscaler/placement":                   "",
		"autoscaler/policy":                      "autoscaler/api/v1alpha1 providers",
		"autoscaler/plan": "autoscaler/api/v1alpha1 autoscaler/placement autoscaler/policy " +
			"providers quota quota/money",
		"autoscaler/bootstrap": "nodeagent/link",
		"autoscaler/observe": "autoscaler/api/v1alpha1 autoscaler/placement autoscaler/plan " +
			"autoscaler/policy datasync providers quota quota/ledger quota/money",
		"autoscaler/inquiry": "autoscaler/observe autoscaler/plan",
		"autoscaler/capi": "autoscaler/api/v1alpha1 autoscaler/api/infrastructure/v1alpha1 " +
			"autoscaler/api/controlplane/v1alpha1 autoscaler/infra",
		"autoscaler/infra": "autoscaler/api/v1alpha1 autoscaler/api/infrastructure/v1alpha1 " +
			"providers quota quota/ledger quota/money",
		"autoscaler/lifecycle": "autoscaler/api/v1alpha1 autoscaler/api/infrastructure/v1alpha1 " +
			"autoscaler/bootstrap autoscaler/capi autoscaler/infra autoscaler/observe autoscaler/plan datasync " +
			"datasync/s3 datasync/seal datasync/stager nodeagent/link nodeagent/wipe providers quota " +
			"quota/ledger quota/money",

		"autoscaler/controller": anything, // puts the parts together

		"charts/spillway": "",

		"cmd/spillway":       anything,
		"cmd/spillway-agent": "nodeagent nodeagent/link",

		"e2e":                "",
		"e2e/benchgoals":     "",
		"e2e/canary":         "",
		"e2e/controlplane":   "e2e/procnode/child",
		"e2e/demo":           anything,                        // the story that "make demo" tells
		"e2e/keyservice":     "datasync/seal datasync/stager", // the promises of key services, and a server that breaks them
		"e2e/kube":           "",
		"e2e/objectstore":    "e2e/procnode/child",
		"e2e/openstack":      "e2e/procnode/child",
		"e2e/parity":         "", // its tests import what they like
		"e2e/procnode":       "e2e/procnode/child nodeagent nodeagent/link",
		"e2e/procnode/child": "",
		"e2e/runner":         "",
		"e2e/stories":        "",       // its tests import what they like
		"e2e/world":          anything, // a whole small world for stories
	}
}

// anything is for what puts all parts together; arrows between the top folders
// hold for it all the same.
const anything = "*"

// pure packages decide and never act: time, ids and randomness are inputs.
func pure() []string {
	return []string{
		"providers", "quota", "quota/money", "quota/focus", "datasync", "datasync/seal",
		"autoscaler/placement", "autoscaler/policy", "autoscaler/plan",
	}
}

// apiTypes are plain data that pure packages may read.
const apiTypes = "autoscaler/api/v1alpha1"

// dataTypes are packages that pure ones may import beside the standard library.
// The scheduler's own code decides fit, so placement alone may use it.
func dataTypes() map[string][]string {
	kubernetes := []string{"k8s.io/api", "k8s.io/apimachinery"}
	return map[string][]string{
		"autoscaler/placement": {"k8s.io", "github.com/go-logr/logr"},
		"autoscaler/policy":    kubernetes,
		"autoscaler/plan":      kubernetes,
	}
}

// impure is what a pure package must not reach, also not through its own kind.
func impure() []string {
	return []string{
		"net", "os", "syscall", "log", "math/rand", "crypto/rand", "embed", "plugin", "unsafe",
		"runtime/debug", "golang.org/x/sys", "expvar", "database/sql",
	}
}

// confined names the only packages that may import what has cost or reach.
// An entry that ends in "/" stands for all packages below it.
func confined() map[string][]string {
	return map[string][]string{
		"github.com/minio/minio-go":    {"datasync/s3", "e2e", "e2e/"},
		"github.com/versity/versitygw": {"e2e/objectstore"},
		"database/sql":                 {"quota/ledger"},
		"modernc.org/sqlite":           {"quota/ledger"},
		"github.com/NVIDIA/go-nvml":    {"nodeagent/gpu"},
		"github.com/gophercloud":       {"providers/openstack"},
		"github.com/aws":               {"providers/ec2", "e2e/objectstore"},
		"sigs.k8s.io/controller-runtime": {
			"autoscaler/observe", "autoscaler/lifecycle", "autoscaler/capi", "autoscaler/infra", "autoscaler/controller",
			"cmd/spillway", "e2e", "e2e/",
		},
		"sigs.k8s.io/cluster-api": {
			"autoscaler/lifecycle", "autoscaler/capi", "autoscaler/infra", "autoscaler/controller", "cmd/spillway", "e2e", "e2e/",
		},
		"k8s.io/kubernetes":           {"autoscaler/placement", "e2e/"},
		"k8s.io/kubectl":              {"e2e/"},
		"go.etcd.io/etcd":             {"e2e/kube"},
		"github.com/spf13/cobra":      {"cmd/", "e2e/kube"},
		"testing":                     {"providers/conformance", "e2e/keyservice"},
		"github.com/google/go-cmp":    {"providers/conformance"},
		"pgregory.net/rapid":          {"providers/conformance"},
		"github.com/stretchr/testify": nil,
		"go.uber.org/mock":            nil,
		"github.com/pkg/errors":       nil,
		"github.com/samber/lo":        nil,
	}
}

// testKits are what drivers are held against. No program is made of them.
func testKits() []string { return []string{"providers/conformance", "providers/ec2/ec2fake"} }

// maxPackages keeps the map of the product small enough to hold in one's head.
const maxPackages = 34

func TestArchitecture(t *testing.T) {
	packages := readTree(t)
	t.Run("each package imports only what its line allows", func(t *testing.T) { checkImports(t, packages) })
	t.Run("arrows between the top folders go one way", func(t *testing.T) { checkArrows(t, packages) })
	t.Run("pure packages reach nothing that acts", func(t *testing.T) { checkPurity(t, packages) })
	t.Run("each SDK stays in its home", func(t *testing.T) { checkHomes(t, packages) })
	t.Run("names say something", func(t *testing.T) { checkNames(t, packages) })
	t.Run("one package comment of three lines or more", func(t *testing.T) { checkComments(t, packages) })
	t.Run("each dependency has a reason in the README", func(t *testing.T) { checkDependencies(t, packages) })
}

func checkImports(t *testing.T, packages tree) {
	t.Helper()
	table := mayImport()
	for name, pkg := range packages {
		allowed, listed := table[name]
		if !listed {
			t.Errorf("package %s has no line in mayImport: what is it for?", name)
		}
		for _, imported := range pkg.own() {
			if allowed != anything && !slices.Contains(strings.Fields(allowed), imported) {
				t.Errorf("%s must not import %s", name, imported)
			}
		}
	}
	for name := range table {
		if _, exists := packages[name]; !exists && !comesLater(name) {
			t.Errorf("mayImport has a line for %s, which does not exist", name)
		}
	}
	product := 0
	for name := range packages {
		if top(name) != "e2e" && !slices.Contains(testKits(), name) {
			product++
		}
	}
	if product > maxPackages {
		t.Errorf("%d packages outside e2e, at most %d: split only what has two reasons to change", product, maxPackages)
	}
}

// comesLater names packages that DESIGN gives a place but no issue has built.
func comesLater(name string) bool {
	return slices.Contains([]string{"nodeagent/gpu"}, name)
}

func checkArrows(t *testing.T, packages tree) {
	t.Helper()
	rank := map[string]int{"quota": 0, "datasync": 0, "providers": 1, "nodeagent": 1, "autoscaler": 2, "cmd": 4}
	for name, pkg := range packages {
		from, ranked := rank[top(name)]
		if !ranked {
			continue
		}
		for _, imported := range pkg.own() {
			to, known := rank[top(imported)]
			if known && top(imported) != top(name) && to >= from {
				t.Errorf("%s imports %s: %s must not know %s", name, imported, top(name), top(imported))
			}
			if name != "cmd/spillway" && top(imported) == "e2e" {
				t.Errorf("%s imports %s: product code must not know its tests", name, imported)
			}
		}
	}
}

func checkPurity(t *testing.T, packages tree) {
	t.Helper()
	for _, name := range pure() {
		if _, exists := packages[name]; !exists {
			continue
		}
		for _, reached := range packages.reach(name) {
			if !slices.Contains(pure(), reached) && reached != apiTypes {
				t.Errorf("%s is pure and must not reach %s", name, reached)
			}
		}
		for _, imported := range packages[name].Imports {
			if under(imported, impure()) {
				t.Errorf("%s is pure and must not import %s: take it as an input", name, imported)
			}
			if foreign(imported) && !under(imported, dataTypes()[name]) {
				t.Errorf("%s is pure and must not import %s: only the standard library and data types", name, imported)
			}
		}
	}
}

func checkHomes(t *testing.T, packages tree) {
	t.Helper()
	rules := confined()
	for name, pkg := range packages {
		for _, imported := range pkg.Imports {
			for prefix, homes := range rules {
				if under(imported, []string{prefix}) && !livesIn(name, homes) {
					t.Errorf("%s must not import %s: it belongs to %v only", name, imported, homes)
				}
			}
		}
		for _, imported := range slices.Concat(pkg.TestImports, pkg.XTestImports) {
			for prefix, homes := range rules {
				if homes == nil && under(imported, []string{prefix}) {
					t.Errorf("a test of %s must not import %s", name, imported)
				}
			}
		}
	}
}

func checkNames(t *testing.T, packages tree) {
	t.Helper()
	bad := []string{"util", "utils", "common", "helper", "helpers", "misc", "base", "shared", "types", "constants"}
	for name, pkg := range packages {
		if last := name[strings.LastIndex(name, "/")+1:]; slices.Contains(bad, last) {
			t.Errorf("package %s says nothing by its name: give it a noun of its own", name)
		}
		for _, file := range pkg.files() {
			if stem := strings.TrimSuffix(strings.TrimSuffix(file, ".go"), "_test"); slices.Contains(bad, stem) {
				t.Errorf("file %s/%s says nothing by its name: give it a noun of its own", name, file)
			}
		}
	}
}

func checkComments(t *testing.T, packages tree) {
	t.Helper()
	for name, pkg := range packages {
		comments := 0
		for _, file := range pkg.parse(t, pkg.GoFiles) {
			if file.Doc == nil {
				continue
			}
			comments++
			text := strings.TrimSpace(file.Doc.Text())
			if lines := strings.Count(text, "\n") + 1; lines < 3 {
				t.Errorf("package %s: its comment has %d lines, at least 3: promise and vocabulary", name, lines)
			}
			if !strings.HasPrefix(text, "Package ") && !strings.HasPrefix(text, "Command ") {
				t.Errorf("package %s: its comment must start with Package or Command", name)
			}
		}
		if comments != 1 && len(pkg.GoFiles) > 0 {
			t.Errorf("package %s has %d package comments, exactly 1", name, comments)
		}
	}
}

// maxFamilies bounds the dependencies that the code imports by itself. The
// modules of one repository, such as Kubernetes' own, count as one.
const maxFamilies = 20

func checkDependencies(t *testing.T, packages tree) {
	t.Helper()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	required := requirements(t)
	used := map[string]bool{}
	for _, pkg := range packages {
		for _, imported := range slices.Concat(pkg.Imports, pkg.TestImports, pkg.XTestImports) {
			if foreign(imported) {
				used[family(required, imported)] = true
			}
		}
	}
	for name := range used {
		if !strings.Contains(string(readme), name) {
			t.Errorf("module %s has no reason in the README's table of dependencies", name)
		}
	}
	if len(used) > maxFamilies {
		t.Errorf("%d dependencies are imported directly, at most %d", len(used), maxFamilies)
	}
}

// requirements are the module paths in go.mod.
func requirements(t *testing.T) (paths []string) {
	t.Helper()
	text, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if strings.HasPrefix(line, "\t") && len(fields) >= 2 && strings.HasPrefix(fields[1], "v") {
			paths = append(paths, fields[0])
		}
	}
	return paths
}

// family is the module that holds the package, or the name that all modules of
// its repository begin with.
func family(modules []string, path string) string {
	for _, many := range []string{"k8s.io", "sigs.k8s.io/cluster-api", "github.com/aws/aws-sdk-go-v2"} {
		if under(path, []string{many}) {
			return many
		}
	}
	best := path
	for _, m := range modules {
		if under(path, []string{m}) && (best == path || len(m) > len(best)) {
			best = m
		}
	}
	return best
}

func top(name string) string {
	first, _, _ := strings.Cut(name, "/")
	return first
}

// under reports whether path is one of the prefixes or lies below one.
func under(path string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool {
		return path == prefix || strings.HasPrefix(path, prefix+"/")
	})
}

func livesIn(name string, homes []string) bool {
	return slices.ContainsFunc(homes, func(h string) bool {
		return name == h || strings.HasSuffix(h, "/") && strings.HasPrefix(name, h)
	})
}

// foreign reports whether an import is neither ours nor the standard library.
func foreign(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return strings.Contains(first, ".") && !strings.HasPrefix(path, module)
}

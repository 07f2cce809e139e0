package e2e

import (
	"errors"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "spillway.dev/spillway/"

// source is one package as its files show it.
type source struct{ *build.Package }

// tree is every package of the module by its path inside it.
type tree map[string]source

// readTree reads the module from its files, without the go tool: in
// milliseconds, and also when a package does not compile. Run it with -count=1:
// the test cache does not see the files of other packages.
func readTree(t *testing.T) tree {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	packages := tree{}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if path != root && skipped(path) {
			return filepath.SkipDir
		}
		pkg, err := build.ImportDir(path, 0)
		if _, none := errors.AsType[*build.NoGoError](err); none {
			return nil
		}
		if err != nil {
			t.Errorf("read %s: %v", path, err)
			return nil
		}
		name, err := filepath.Rel(root, path)
		packages[filepath.ToSlash(name)] = source{pkg}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(packages) < 10 {
		t.Fatalf("found %d packages under %s: this is not the module", len(packages), root)
	}
	return packages
}

// skipped reports whether a folder holds no packages of this module.
func skipped(path string) bool {
	name := filepath.Base(path)
	if name == "testdata" || name == "bin" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") {
		return true
	}
	_, err := os.Stat(filepath.Join(path, "go.mod"))
	return err == nil
}

// own are the imports that belong to this module.
func (p source) own() (names []string) {
	for _, imported := range p.Imports {
		if inner, ok := strings.CutPrefix(imported, module); ok {
			names = append(names, inner)
		}
	}
	return names
}

// files are all source files of the package, tests included.
func (p source) files() []string {
	return slices.Concat(p.GoFiles, p.CgoFiles, p.TestGoFiles, p.XTestGoFiles)
}

// isTest reports whether a file is a test.
func isTest(file string) bool { return strings.HasSuffix(file, "_test.go") }

// generated reports whether a file is made by a tool.
func generated(file string) bool { return strings.HasPrefix(file, "zz_generated.") }

// parse reads files of the package.
func (p source) parse(t *testing.T, names []string) map[string]*ast.File {
	t.Helper()
	parsed := map[string]*ast.File{}
	for _, name := range names {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("parse: %v", err)
			continue
		}
		parsed[name] = file
	}
	return parsed
}

// reach is every package of this module that name imports, also indirectly.
func (ps tree) reach(name string) (names []string) {
	todo := ps[name].own()
	for len(todo) > 0 {
		next := todo[0]
		todo = todo[1:]
		if slices.Contains(names, next) {
			continue
		}
		names = append(names, next)
		todo = append(todo, ps[next].own()...)
	}
	return names
}

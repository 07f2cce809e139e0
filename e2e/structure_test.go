package e2e

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The bars. Half of all functions of good Go code fit in 7 to 13 lines and 95 %
// in 70, so the limits cost nothing; nobody reads a file of 2,000 lines.
const (
	maxFunction  = 70
	maxFile      = 500
	maxTestFile  = 800
	maxInterface = 6
)

func TestStructure(t *testing.T) {
	packages := readTree(t)
	t.Run("functions, files and interfaces keep to the bars", func(t *testing.T) { checkSizes(t, packages) })
	t.Run("no global state", func(t *testing.T) { checkState(t, packages) })
	t.Run("no clock in pure packages", func(t *testing.T) { checkClock(t, packages) })
	t.Run("no float on money paths", func(t *testing.T) { checkFloats(t, packages) })
}

func checkSizes(t *testing.T, packages tree) {
	t.Helper()
	for name, pkg := range packages {
		for _, file := range pkg.files() {
			path := filepath.Join(pkg.Dir, file)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if generated(file) {
				continue
			}
			limit := maxFile
			if isTest(file) {
				limit = maxTestFile
			}
			if lines := bytes.Count(text, []byte("\n")); lines > limit {
				t.Errorf("%s/%s has %d lines, at most %d: split it by subject", name, file, lines, limit)
			}
			measure(t, name+"/"+file, text)
		}
	}
}

// measure looks at each function and interface of one file. Tests may have long
// functions, since a table of cases is data; the file bar holds for them.
func measure(t *testing.T, path string, text []byte) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, text, parser.SkipObjectResolution)
	if err != nil {
		t.Errorf("parse: %v", err)
		return
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			lines := set.Position(n.End()).Line - set.Position(n.Pos()).Line + 1
			if lines > maxFunction && !isTest(path) {
				t.Errorf("%s: function %s has %d lines, at most %d", set.Position(n.Pos()), n.Name.Name, lines, maxFunction)
			}
		case *ast.InterfaceType:
			if methods := n.Methods.NumFields(); methods > maxInterface {
				t.Errorf("%s: an interface of %d methods, at most %d: make a part of it optional", set.Position(n.Pos()), methods, maxInterface)
			}
		}
		return true
	})
}

func checkState(t *testing.T, packages tree) {
	t.Helper()
	for name, pkg := range packages {
		for file, parsed := range pkg.parse(t, slices.Concat(pkg.GoFiles, pkg.CgoFiles)) {
			if generated(file) {
				continue
			}
			for _, decl := range parsed.Decls {
				switch decl := decl.(type) {
				case *ast.FuncDecl:
					if decl.Recv == nil && decl.Name.Name == "init" {
						t.Errorf("%s/%s has an init function: do it where it is needed", name, file)
					}
				case *ast.GenDecl:
					if decl.Tok == token.VAR {
						checkVariables(t, name+"/"+file, decl, pkg.IsCommand())
					}
				}
			}
		}
	}
}

// checkVariables lets through errors, embedded files, compile-time checks, and
// the version that the linker writes into a program.
func checkVariables(t *testing.T, path string, decl *ast.GenDecl, program bool) {
	t.Helper()
	for _, spec := range decl.Specs {
		value := spec.(*ast.ValueSpec)
		if embeds(decl.Doc) || embeds(value.Doc) {
			continue
		}
		for _, ident := range value.Names {
			if program && ident.Name == "version" {
				continue
			}
			if ident.Name != "_" && !strings.HasPrefix(strings.ToLower(ident.Name), "err") {
				t.Errorf("%s: package variable %s: only errors and embedded files may be package variables", path, ident.Name)
			}
		}
	}
}

func embeds(doc *ast.CommentGroup) bool {
	return doc != nil && slices.ContainsFunc(doc.List, func(c *ast.Comment) bool {
		return strings.HasPrefix(c.Text, "//go:embed ")
	})
}

// checkClock: a plan that reads the clock can't be
// replayed.
func checkClock(t *testing.T, packages tree) {
	t.Helper()
	calls := []string{"Now", "Sleep", "After", "AfterFunc", "Tick", "Since", "Until", "NewTimer", "NewTicker"}
	for _, name := range pure() {
		if _, exists := packages[name]; !exists {
			continue
		}
		for file, parsed := range packages[name].parse(t, packages[name].GoFiles) {
			ast.Inspect(parsed, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "time" && slices.Contains(calls, sel.Sel.Name) {
					t.Errorf("%s/%s calls time.%s: take the time as an input", name, file, sel.Sel.Name)
				}
				return true
			})
		}
	}
}

// checkFloats: ten times 0.10 is 0.9999999999999999.
// cases: H-25 candelahq/candela#645, backblaze-labs/genblaze#63
func checkFloats(t *testing.T, packages tree) {
	t.Helper()
	money := []string{"quota", "quota/money", "quota/ledger", "quota/focus", "providers", "autoscaler/policy", "autoscaler/plan"}
	for name, pkg := range packages {
		for file, parsed := range pkg.parse(t, pkg.GoFiles) {
			if generated(file) {
				continue
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.Ident:
					if slices.Contains(money, name) && slices.Contains([]string{"float32", "float64", "ParseFloat"}, n.Name) {
						t.Errorf("%s/%s uses %s: money is counted in integers", name, file, n.Name)
					}
				case *ast.BasicLit:
					if slices.Contains(money, name) && n.Kind == token.FLOAT && strings.Contains(n.Value, ".") {
						t.Errorf("%s/%s has the float %s: money is counted in integers", name, file, n.Value)
					}
				case *ast.CallExpr:
					if floatsMoney(n) {
						t.Errorf("%s/%s turns an amount of money into a float", name, file)
					}
				}
				return true
			})
		}
	}
}

// floatsMoney finds float64(x.Nano) and float64(x.NanoPerHour).
func floatsMoney(call *ast.CallExpr) bool {
	name, ok := call.Fun.(*ast.Ident)
	if !ok || name.Name != "float64" && name.Name != "float32" {
		return false
	}
	found := false
	ast.Inspect(call, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && (sel.Sel.Name == "Nano" || sel.Sel.Name == "NanoPerHour") {
			found = true
		}
		return !found
	})
	return found
}

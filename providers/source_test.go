package providers_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// TestNobodyReturnsATypedError: a nil *Error that is returned as error is not
// nil, and a call that succeeded looks like one that failed.
//
// cases: H-35 appvia/kore PR#497
func TestNobodyReturnsATypedError(t *testing.T) {
	files := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files++
		ast.Inspect(file, func(n ast.Node) bool {
			f, ok := n.(*ast.FuncType)
			if !ok || f.Results.NumFields() == 0 {
				return true
			}
			last := f.Results.List[len(f.Results.List)-1] // where the error stands
			if name := typedError(last.Type); name != "" {
				t.Errorf("%s: a function returns *%s: return error", path, name)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 100 {
		t.Errorf("looked at %d files only", files)
	}
}

// typedError names a result that is a pointer to an error type.
func typedError(e ast.Expr) string {
	star, ok := e.(*ast.StarExpr)
	if !ok {
		return ""
	}
	name := ""
	switch x := star.X.(type) {
	case *ast.Ident:
		name = x.Name
	case *ast.SelectorExpr:
		name = x.Sel.Name
	}
	if strings.HasSuffix(name, "Error") {
		return name
	}
	return ""
}

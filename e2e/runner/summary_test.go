package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// events is what "go test -json" prints for one good package, one with a
// failing row and a skipped test, and one that does not compile.
const events = `
{"Action":"pass","Package":"spillway.dev/spillway/quota","Test":"TestA/row_1"}
{"Action":"pass","Package":"spillway.dev/spillway/quota","Test":"TestA/row_2"}
{"Action":"pass","Package":"spillway.dev/spillway/quota","Test":"TestA"}
{"Action":"pass","Package":"spillway.dev/spillway/quota","Elapsed":0.5}
{"Action":"output","Package":"spillway.dev/spillway/providers","Test":"TestB/bad","Output":"    b_test.go:1: it broke\n"}
{"Action":"fail","Package":"spillway.dev/spillway/providers","Test":"TestB/bad"}
{"Action":"fail","Package":"spillway.dev/spillway/providers","Test":"TestB"}
{"Action":"output","Package":"spillway.dev/spillway/providers","Test":"TestC","Output":"    c_test.go:1: needs root\n"}
{"Action":"output","Package":"spillway.dev/spillway/providers","Test":"TestC","Output":"--- SKIP: TestC (0.00s)\n"}
{"Action":"skip","Package":"spillway.dev/spillway/providers","Test":"TestC"}
{"Action":"fail","Package":"spillway.dev/spillway/providers","Elapsed":1.5}
{"ImportPath":"spillway.dev/spillway/nodeagent","Action":"build-output","Output":"x.go:1: undefined: y\n"}
{"Action":"fail","Package":"spillway.dev/spillway/nodeagent","Elapsed":0,"FailedBuild":"spillway.dev/spillway/nodeagent"}
{"Action":"skip","Package":"spillway.dev/spillway/e2e/kube","Elapsed":0}
`

func TestSummary(t *testing.T) {
	sum := newSummary(map[string]string{"spillway.dev/spillway/quota": "Package quota counts money."})
	var live, end strings.Builder
	stream := json.NewDecoder(strings.NewReader(events))
	for stream.More() {
		var e event
		if err := stream.Decode(&e); err != nil {
			t.Fatal(err)
		}
		sum.add(e, &live)
	}
	sum.print(&end)
	for name, want := range map[string]string{
		"a table counts its rows, not itself":       "ok      2 passed   0 failed    0.5 s  quota                      counts money\n",
		"a skipped test gives its reason":           "skipped providers TestC: c_test.go:1: needs root",
		"a failure is shown":                        "it broke",
		"a package that does not compile is shown":  "undefined: y",
		"a package that does not compile is failed": "\n2 passed, 2 failed\n",
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(end.String(), want) {
				t.Errorf("no %q in\n%s", want, end.String())
			}
		})
	}
	t.Run("a package without tests is not listed", func(t *testing.T) {
		if strings.Contains(live.String()+end.String(), "e2e/kube") {
			t.Error("e2e/kube is listed")
		}
	})
}

func TestClause(t *testing.T) {
	for name, tt := range map[string]struct{ sentence, want string }{
		"a short one stays":          {"counts money", "counts money"},
		"a long one ends at a comma": {strings.Repeat("word ", 12) + "end, " + strings.Repeat("more ", 12), strings.Repeat("word ", 12) + "end"},
		"one without a breath":       {strings.Repeat("word ", 30), strings.Repeat("word ", 19) + "word " + "..."},
	} {
		t.Run(name, func(t *testing.T) {
			if got := clause(tt.sentence); got != tt.want {
				t.Errorf("clause() = %q, want %q", got, tt.want)
			}
		})
	}
}

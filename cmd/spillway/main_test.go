package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"spillway": main})
}

// TestScripts runs the commands as a person would: what they print, what they
// say is wrong, and the exit status.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:  "testdata",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"status": status},
	})
}

// status runs the program and checks its exit status: status 2 spillway sweep.
func status(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec(args[1], args[2:]...)
	got := "0"
	if err != nil {
		got = strings.TrimPrefix(err.Error(), "exit status ")
	}
	if got != args[0] {
		ts.Fatalf("%s ended with %s, want exit status %s", strings.Join(args[1:], " "), got, args[0])
	}
}

// TestCommands holds the list of commands to its golden file: what an issue
// does not bring yet is absent, and nothing goes away by accident.
func TestCommands(t *testing.T) {
	var out bytes.Buffer
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			return
		}
		if c.Runnable() {
			_, _ = fmt.Fprintf(&out, "%-28s %s\n", c.CommandPath(), c.Short)
		}
		for _, child := range c.Commands() {
			walk(child)
		}
	}
	walk(root())
	file := filepath.Join("testdata", "commands.golden")
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), out.String()); diff != "" {
		t.Errorf("the commands have changed; UPDATE_GOLDEN=1 go test ./cmd/spillway writes them anew:\n%s", diff)
	}
}

// TestControllerNamesWhatIsWrong: no cluster, a broken setting, a missing file.
func TestControllerNamesWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	tests := map[string]struct{ file, want string }{
		"no file":          {filepath.Join(dir, "absent"), "configuration"},
		"an unknown field": {write("field", "kubeconfg: x\n"), "kubeconfg"},
		"an unknown time":  {write("time", "times: {debonce: 3s}\n"), `"debonce" is no setting`},
		"a time of zero":   {write("zero", "times: {debounce: 0s}\n"), "debounce"},
		"no cluster":       {write("cluster", "kubeconfig: "+filepath.Join(dir, "none")+"\n"), "kubeconfig"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := root()
			c.SetArgs([]string{"controller", "--config", tt.file})
			c.SetOut(&bytes.Buffer{})
			err := c.ExecuteContext(context.Background())
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("the controller said %v, want a sentence with %q", err, tt.want)
			}
		})
	}
}

package procnode

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSeekLines(t *testing.T) {
	long := strings.Repeat("x", 70<<10)
	for name, tt := range map[string]struct {
		content string
		lines   int
		want    string
	}{
		"the last line":                     {"a\nb\nc\n", 1, "c\n"},
		"an unfinished line counts":         {"a\nb\nc", 2, "b\nc"},
		"more than there are is everything": {"a\nb\n", 9, "a\nb\n"},
		"none":                              {"a\nb\n", 0, ""},
		"an empty log":                      {"", 3, ""},
		"empty lines count":                 {"a\n\n\n", 2, "\n\n"},
		"lines longer than a block":         {"a\n" + long + "\nb\n", 2, long + "\nb\n"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(path, []byte(tt.content), 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			if err := seekLines(f, tt.lines); err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(f); err != nil || string(got) != tt.want {
				t.Errorf("read %d bytes, %v, want %d", len(got), err, len(tt.want))
			}
		})
	}
}

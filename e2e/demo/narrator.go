package demo

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// narrator prints a line a fact, with the time since the start.
type narrator struct {
	out   io.Writer
	quiet bool
	start time.Time
	mu    sync.Mutex
}

func (n *narrator) printf(format string, args ...any) {
	if n.quiet {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	_, _ = fmt.Fprintf(n.out, format, args...)
}

func (n *narrator) chapter(title string) { n.printf("\n== %s\n", title) }

// fact prints one line.
func (n *narrator) fact(text string) {
	n.printf("%6.1fs  %s\n", time.Since(n.start).Seconds(), text)
}

func (n *narrator) factf(format string, args ...any) { n.fact(fmt.Sprintf(format, args...)) }

// bar prints progress: a bar that moves on a terminal, quarters elsewhere.
func (n *narrator) bar(what string, total int64) func(done int64) {
	const width = 30
	file, ok := n.out.(*os.File)
	terminal := false
	if ok {
		info, err := file.Stat()
		terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	last := int64(-1)
	return func(done int64) {
		share := min(done, total) * width / max(1, total)
		if share == last {
			return
		}
		if terminal {
			end := ""
			if share == width {
				end = "\n"
			}
			n.printf("\r%6.1fs  %s [%s%s] %3d%%%s", time.Since(n.start).Seconds(), what,
				strings.Repeat("#", int(share)), strings.Repeat(".", int(width-share)), share*100/width, end)
		} else if share*4/width != last*4/width || last < 0 {
			n.factf("%s %d%%", what, share*100/width)
		}
		last = share
	}
}

// copyLogs copies the .log files below a folder.
func copyLogs(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".log" {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		return copyFile(path, filepath.Join(to, rel))
	})
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}

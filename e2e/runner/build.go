package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// quiet is how long a build without a terminal says nothing.
const quiet = 15 * time.Second

// build runs "go build -v args" and shows how many of the packages that are
// not in the build cache are compiled. The last argument is the package.
func build(ctx context.Context, args []string, out io.Writer) error {
	pkg := args[len(args)-1]
	fmt.Fprintf(out, "building %s: looking what is to be compiled\n", pkg)
	total, err := stale(ctx, pkg)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-v"}, args...)...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("build %s: %w", pkg, err)
	}
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("build %s: %w; install Go 1.26 and put it on PATH", pkg, err)
	}
	bar := &progress{what: pkg, total: total, begin: begin, out: out, live: isTerminal(os.Stdout)}
	stopped := bar.start()
	messages := bar.read(stderr)
	err = cmd.Wait()
	stopped()
	if err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, strings.Join(messages, "\n"))
	}
	fmt.Fprintf(out, "built %s: %d packages in %s\n", pkg, bar.done, time.Since(begin).Round(time.Second))
	return nil
}

// stale counts the packages that a build of pkg has to compile.
func stale(ctx context.Context, pkg string) (int, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}", pkg)
	cmd.Stderr = os.Stderr
	list, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("list what %s needs: %w; run it in the root of the repository, with a module proxy in reach", pkg, err)
	}
	return len(strings.Fields(string(list))), nil
}

// progress counts compiled packages and says so: as a bar that is drawn over
// and over on a terminal, as a line now and then elsewhere.
type progress struct {
	what  string
	total int
	begin time.Time
	out   io.Writer
	live  bool

	mu   sync.Mutex
	done int
}

// start reports until the returned function is called.
func (p *progress) start() (stop func()) {
	every := quiet
	if p.live {
		every = time.Second
	}
	tick, done, idle := time.NewTicker(every), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(idle)
		for {
			select {
			case <-tick.C:
				p.show()
			case <-done:
				return
			}
		}
	}()
	return func() {
		tick.Stop()
		close(done)
		<-idle
		if p.live {
			fmt.Fprint(p.out, "\r\x1b[K")
		}
	}
}

// read counts the package names that "go build -v" prints and returns every
// other line: those are messages of the compiler.
func (p *progress) read(r io.Reader) (messages []string) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || strings.ContainsAny(line, " \t") {
			messages = append(messages, line)
			continue
		}
		p.mu.Lock()
		p.done++
		p.mu.Unlock()
	}
	return messages
}

func (p *progress) show() {
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	total := max(p.total, done, 1)
	line := fmt.Sprintf("%s  %d of %d packages  %s", p.what, done, total, time.Since(p.begin).Round(time.Second))
	if done >= total-1 {
		line += "  linking"
	}
	if !p.live {
		fmt.Fprintln(p.out, line)
		return
	}
	const width = 30
	full := width * done / total
	fmt.Fprintf(p.out, "\r\x1b[K[%s%s] %s", strings.Repeat("#", full), strings.Repeat(".", width-full), line)
}

// isTerminal reports whether f is a screen that a person looks at.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

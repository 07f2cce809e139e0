package procnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"spillway.dev/spillway/e2e/procnode/child"
)

// consoleTail is how much of the console an error shows, in bytes.
const consoleTail = 1024

// Machine is the outside of a process node that this process has started: its
// case, with a power cable and a console.
type Machine struct {
	// Dir is the machine's folder, Console the file with its log.
	Dir, Console string

	keeper  *child.Keeper
	process *child.Process
}

// Start boots a machine as a child process: config.Exec followed by the flags
// of config. It returns when the process runs, long before the node has
// joined. The machine loses power, with all that it runs, when ctx ends or
// this process does.
func Start(ctx context.Context, config Config) (*Machine, error) {
	if len(config.Exec) == 0 {
		return nil, errors.New("start process node: Config.Exec is empty: name the command that runs procnode.Main")
	}
	if err := os.MkdirAll(config.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("machine folder: %w", err)
	}
	m := &Machine{Dir: config.Dir, Console: filepath.Join(config.Dir, "console.log"), keeper: child.NewKeeper()}
	console, err := os.OpenFile(m.Console, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		m.keeper.Close()
		return nil, fmt.Errorf("console of process node %s: %w", config.Name, err)
	}
	defer func() { _ = console.Close() }()
	cmd := exec.Command(config.Exec[0], append(config.Exec[1:len(config.Exec):len(config.Exec)], config.args()...)...)
	cmd.Stdout, cmd.Stderr = console, console
	if m.process, err = m.keeper.Start(cmd); err != nil {
		m.keeper.Close()
		return nil, fmt.Errorf("process node %s: %w", config.Name, err)
	}
	go func() {
		select {
		case <-ctx.Done():
			m.process.Kill()
			<-m.process.Done()
		case <-m.process.Done():
		}
		m.keeper.Close()
	}()
	return m, nil
}

// PID is the process ID of the machine.
func (m *Machine) PID() int { return m.process.PID() }

// Done is closed when the machine is off.
func (m *Machine) Done() <-chan struct{} { return m.process.Done() }

// Kill cuts the power and returns when the machine is off.
func (m *Machine) Kill() {
	m.process.Kill()
	<-m.process.Done()
}

// Err says why a machine that is off went off: nil when it was powered off in
// order, else its exit status and the end of its console. It is nil while the
// machine runs.
func (m *Machine) Err() error {
	state := m.process.State()
	if state == nil || state.Success() {
		return nil
	}
	return fmt.Errorf("process node ended with %v; its console is %s and ends with:\n%s", state, m.Console, tail(m.Console, consoleTail))
}

// tail returns up to the last n bytes of a file, or "" when it can't be read.
func tail(path string, n int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	if size, err := f.Seek(0, io.SeekEnd); err != nil || size < n {
		n = size
	}
	if _, err := f.Seek(-n, io.SeekEnd); err != nil {
		return ""
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return ""
	}
	return string(b)
}

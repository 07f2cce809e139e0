// Package postgres runs a real PostgreSQL server for tests: Debian's, on a free
// port of the loopback, with a data folder of its own, as durable as a server
// for money has to be.
//
// [Start] takes the newest server that is installed below /usr/lib/postgresql,
// or the one on PATH; "make postgres" installs one where there is none. The
// server refuses to run as root, so for root it runs as the user postgres.
//
// Vocabulary: a [Server] can be killed as a power cut kills it and started
// again on the same data; a standby is a second server that follows a first
// one and can take its place; the [Line] is a TCP line to a server that can be
// cut in the middle. Whatever ends the test ends the servers.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"spillway.dev/spillway/e2e/procnode/child"
)

// Password is the superuser's. It is one that no message says by chance.
const Password = "correct-horse-battery"

// Superuser is the role that the servers are made with.
const Superuser = "owner"

const (
	startWait = 60 * time.Second
	endWait   = 30 * time.Second
)

// Server is one PostgreSQL server.
type Server struct {
	dir    string // holds the data, the log and the socket
	bin    string
	port   string
	as     *syscall.Credential
	keeper *child.Keeper
	main   *child.Process
}

// Start makes a new server and returns it once it answers. Everything of it lies
// in a new folder below the system's temporary one, which [Server.Stop] removes.
func Start(ctx context.Context) (*Server, error) {
	return begin(ctx, func(s *Server) error {
		password := filepath.Join(s.dir, "password")
		if err := os.WriteFile(password, []byte(Password), 0o600); err != nil {
			return err
		}
		if err := s.own(password); err != nil {
			return err
		}
		return s.run(ctx, "initdb", "--pgdata", s.data(), "--username", Superuser, "--pwfile", password,
			"--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C")
	})
}

// Standby makes a server that follows s, and returns it once it answers. It lags
// behind by what s has not sent it.
func (s *Server) Standby(ctx context.Context) (*Server, error) {
	return begin(ctx, func(n *Server) error {
		return n.run(ctx, "pg_basebackup", "--pgdata", n.data(), "--write-recovery-conf", "--checkpoint", "fast",
			"--dbname", s.URL("postgres", Superuser))
	})
}

// begin finds the programs, lets fill make the data, and starts the server.
func begin(ctx context.Context, fill func(*Server) error) (*Server, error) {
	s := &Server{keeper: child.NewKeeper()}
	err := s.prepare()
	if err == nil {
		err = fill(s)
	}
	if err == nil {
		err = s.Launch(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("PostgreSQL: %w", err), s.Stop())
	}
	return s, nil
}

func (s *Server) prepare() (err error) {
	if s.bin, err = programs(); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		if s.as, err = credential("postgres"); err != nil {
			return err
		}
	}
	if s.dir, err = os.MkdirTemp("", "postgres"); err != nil {
		return err
	}
	if err := s.own(s.dir); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	_, s.port, _ = net.SplitHostPort(l.Addr().String())
	return l.Close()
}

// programs is the folder of the newest server that is installed.
func programs() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres") // the pattern is a good one
	if len(found) == 0 {
		onPath, err := exec.LookPath("postgres")
		if err != nil {
			return "", errors.New("there is no server: install Debian's package postgresql, or let \"make postgres\" do it")
		}
		return filepath.Dir(onPath), nil
	}
	version := func(path string) int {
		n, _ := strconv.Atoi(strings.Split(path, "/")[4])
		return n
	}
	return filepath.Dir(slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) })), nil
}

func credential(name string) (*syscall.Credential, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("the server does not run as root, and there is no other user for it: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, err
}

// own gives a file to the user that the server runs as.
func (s *Server) own(path string) error {
	if s.as == nil {
		return nil
	}
	return os.Chown(path, int(s.as.Uid), int(s.as.Gid))
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) logFile() string { return filepath.Join(s.dir, "log") }

func (s *Server) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, name), args...)
	cmd.Dir, cmd.Env = s.dir, []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.as}
	return cmd
}

func (s *Server) run(ctx context.Context, name string, args ...string) error {
	out, err := s.command(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// Launch starts the server on its data, after a [Server.Kill] or a Shutdown, and returns
// once it answers.
func (s *Server) Launch(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, startWait)
	defer stop()
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the server has its own
	cmd := s.command(context.Background(), "postgres", "-D", s.data(), "-p", s.port, "-k", s.dir,
		"-c", "listen_addresses=127.0.0.1", "-c", "max_connections=60", "-c", "shared_buffers=64MB")
	cmd.Stdout, cmd.Stderr = log, log
	if s.main, err = s.keeper.Start(cmd); err != nil {
		return err
	}
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for s.run(ctx, "pg_isready", "-q", "-h", s.dir, "-p", s.port) != nil {
		select {
		case <-again.C:
		case <-s.main.Done():
			return fmt.Errorf("the server ended before it answered: %s", s.logged())
		case <-ctx.Done():
			return fmt.Errorf("the server did not answer: %s", s.logged())
		}
	}
	return nil
}

func (s *Server) logged() string {
	text, _ := os.ReadFile(s.logFile()) // it is told beside an error
	return string(text[max(0, len(text)-4000):])
}

// URL names a database for a role, with its password.
func (s *Server) URL(database, role string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(role, Password), Host: s.Address(), Path: "/" + database}
	return u.String()
}

// Address is host:port.
func (s *Server) Address() string { return net.JoinHostPort("127.0.0.1", s.port) }

// Kill ends the server without a word, by kill -9 of its first process. The others
// end when they see that; Kill returns when all have.
func (s *Server) Kill() error {
	family := append(children(s.main.PID()), s.main.PID())
	if !s.main.End(0) {
		return fmt.Errorf("PostgreSQL: process %d does not end", s.main.PID())
	}
	return gone(family)
}

// Shutdown ends the server in order: connections are told, then cut.
func (s *Server) Shutdown(ctx context.Context) error {
	return s.run(ctx, "pg_ctl", "stop", "--pgdata", s.data(), "--mode", "fast", "--timeout", strconv.Itoa(int(endWait.Seconds())))
}

// Promote lets a standby take over.
func (s *Server) Promote(ctx context.Context) error {
	return s.run(ctx, "pg_ctl", "promote", "--pgdata", s.data(), "--timeout", strconv.Itoa(int(startWait.Seconds())))
}

// Stop ends the server and removes its data. It may be called again.
func (s *Server) Stop() error {
	defer s.keeper.Close()
	var errs []error
	if s.main != nil {
		errs = append(errs, s.Kill())
	}
	if s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}

// children are the processes that pid has started.
func children(pid int) (pids []int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid)) // none when it has ended
	for _, field := range strings.Fields(string(text)) {
		if n, err := strconv.Atoi(field); err == nil {
			pids = append(pids, n)
		}
	}
	return pids
}

// gone waits until processes have ended: they hold the data's memory, and a new
// server would refuse to start beside them.
func gone(pids []int) error {
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(endWait); time.Now().Before(deadline); <-look.C {
		if !slices.ContainsFunc(pids, alive) {
			return nil
		}
	}
	return fmt.Errorf("PostgreSQL: processes %v do not end", pids)
}

func alive(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(text), ") ")
	return !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X") // a zombie holds nothing
}

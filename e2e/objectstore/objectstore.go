// Package objectstore runs a real S3 server, versitygw on a directory, for
// tests and the demo. It is never part of an installation.
//
// versitygw allows one instance per process, so each store is a child process
// of the caller's own binary: [Start] runs the command in Config.Exec, which
// ends in [Main]. The child dies with its parent.
//
// The store checks signatures strictly and writes an access log of its own:
// one line of JSON per request with method, key, status and the bytes of body
// that it really sent ([Entry], [ReadLog]). That log is what proves that a
// cached read cost a 304 and no body.
package objectstore

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"spillway.dev/spillway/e2e/procnode/child"
)

// Config says what store to run.
type Config struct {
	Dir       string   `json:"dir"`  // objects lie below it, in plain files
	Addr      string   `json:"addr"` // host:port; port 0 takes a free one
	AccessKey string   `json:"accessKey"`
	SecretKey string   `json:"secretKey"`
	Users     []User   `json:"users,omitempty"` // further accounts; they reach what bucket policies give them
	Region    string   `json:"region,omitempty"`
	AccessLog string   `json:"accessLog,omitempty"` // file; empty means none
	Versions  bool     `json:"versions,omitempty"`  // allow buckets with versioning
	Health    string   `json:"health"`              // set by Start: a path of this one child, answered without credentials
	Exec      []string `json:"-"`                   // command of the child that calls [Main] with the arguments added
}

// User is an account of the store without any right of its own.
type User struct {
	AccessKey string `json:"accessKey"`
	SecretKey string `json:"secretKey"`
}

// Entry is one line of the access log.
type Entry struct {
	At        time.Time `json:"at"`
	Method    string    `json:"method"`
	Path      string    `json:"path"` // bytes of the request line, with query
	Bucket    string    `json:"bucket"`
	Key       string    `json:"key"`
	Status    int       `json:"status"`
	BytesSent int64     `json:"bytesSent"` // of the body
	Requester string    `json:"requester"` // access key, empty when not authenticated
}

// Store is a running store.
type Store struct {
	cfg    Config
	keeper *child.Keeper // its thread outlives every other: the death signal is a thread's
	server *child.Process
	said   *tail // what it wrote last
}

// Start runs a store and returns once it answers. The error holds what the
// child wrote when it does not come up.
func Start(ctx context.Context, cfg Config) (*Store, error) {
	if len(cfg.Exec) == 0 {
		return nil, errors.New("object store: Config.Exec is empty: name the command that calls objectstore.Main")
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("object store: %w", err)
	}
	addr, err := freeAddr(cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("object store: %w", err)
	}
	cfg.Addr, cfg.Health = addr, "/health-"+strings.ToLower(rand.Text())
	arg, err := json.Marshal(cfg)
	if err != nil {
		return nil, fmt.Errorf("object store: encode config: %w", err)
	}
	s := &Store{cfg: cfg, keeper: child.NewKeeper(), said: &tail{}}
	cmd := exec.Command(cfg.Exec[0], cfg.Exec[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(arg), s.said, s.said
	if s.server, err = s.keeper.Start(cmd); err != nil {
		s.keeper.Close()
		return nil, fmt.Errorf("object store: %w", err)
	}
	if err := s.waitReady(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *Store) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL()+s.cfg.Health, nil)
		if err != nil {
			return fmt.Errorf("object store: %w", err)
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-s.server.Done():
			return fmt.Errorf("object store at %s ended before it answered: %s", s.cfg.Addr, s.said)
		case <-ctx.Done():
			return fmt.Errorf("object store at %s did not answer: %w: %s", s.cfg.Addr, ctx.Err(), s.said)
		}
	}
}

// URL is http://Addr.
func (s *Store) URL() string { return "http://" + s.cfg.Addr }

// Addr is host:port as the store listens.
func (s *Store) Addr() string { return s.cfg.Addr }

// Stop ends the store and waits for its process. It may be called again.
func (s *Store) Stop() error {
	defer s.keeper.Close()
	if !s.server.End(0) {
		return fmt.Errorf("object store: process %d does not end", s.server.PID())
	}
	return nil
}

// freeAddr replaces port 0 by a free one.
func freeAddr(addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("address %q: %w", addr, err)
	}
	if port != "0" {
		return addr, nil
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// ReadLog reads an access log. A last line that is not yet whole is left out.
func ReadLog(path string) ([]Entry, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("access log: %w", err)
	}
	defer f.Close()
	var all []Entry
	for r := bufio.NewReader(f); ; {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("access log: %w", err)
		}
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("access log %s, line %d: %w", path, len(all)+1, err)
		}
		all = append(all, e)
	}
}

// tail keeps the last bytes written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - 4096; over > 0 {
		t.buf = t.buf[over:]
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}

// Allow is a bucket policy that lets users read, write, list and delete in the
// bucket.
func Allow(bucket string, accessKeys ...string) string {
	policy, err := json.Marshal(map[string]any{
		"Version": "2012-10-17",
		"Statement": []map[string]any{{
			"Effect": "Allow", "Principal": map[string]any{"AWS": accessKeys},
			"Action":   []string{"s3:*"},
			"Resource": []string{"arn:aws:s3:::" + bucket, "arn:aws:s3:::" + bucket + "/*"},
		}},
	})
	if err != nil {
		panic("objectstore: a policy of strings always encodes: " + err.Error())
	}
	return string(policy)
}

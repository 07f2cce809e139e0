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
	"context"
	"errors"
	"time"
)

// Config says what store to run.
type Config struct {
	Dir       string   `json:"dir"`  // objects lie below it, in plain files
	Addr      string   `json:"addr"` // host:port; port 0 is not possible
	AccessKey string   `json:"accessKey"`
	SecretKey string   `json:"secretKey"`
	Users     []User   `json:"users,omitempty"` // further accounts; they reach what bucket policies give them
	Region    string   `json:"region,omitempty"`
	AccessLog string   `json:"accessLog,omitempty"` // file; empty means none
	Versions  bool     `json:"versions,omitempty"`  // allow buckets with versioning
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
type Store struct{ cfg Config }

// Start runs a store and returns once it answers.
func Start(ctx context.Context, cfg Config) (*Store, error) { return nil, errors.New("being built") }

// URL is http://Addr.
func (s *Store) URL() string { return "http://" + s.cfg.Addr }

// Stop ends the store and waits for its process.
func (s *Store) Stop() error { return nil }

// Main is the child process: it serves until it is signalled and returns the
// exit status. Its only argument is the Config as JSON.
func Main(args []string) int { return 1 }

// ReadLog reads an access log.
func ReadLog(path string) ([]Entry, error) { return nil, errors.New("being built") }

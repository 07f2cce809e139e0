package nodeagent

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/cache"
	"spillway.dev/spillway/datasync/seal"
	"spillway.dev/spillway/nodeagent/link"
)

// front is what the agent needs of the S3 front.
type front interface {
	http.Handler
	// Stage gives the front key and manifest and fills its cache; nil means
	// that all staged objects are on the disk.
	Stage(ctx context.Context, key seal.DataKey, s *link.Stage) error
	Uploads() []datasync.Upload
	Stats() cache.Stats
	// Lock destroys the front's copy of the key.
	Lock() error
}

// cacheFront is the real front.
type cacheFront struct {
	*cache.Front
	burst string
	dir   string // of its ciphertext
}

// newFront makes the front of a burst node.
func newFront(c Config, dir string, pods *neighbours) (front, error) {
	gate, err := url.Parse(c.Join.Gate)
	if err != nil {
		return nil, fmt.Errorf("join data: gate %q: %w: render it again from the burst", c.Join.Gate, err)
	}
	cas := x509.NewCertPool()
	if !cas.AppendCertsFromPEM(c.Join.GateCA) {
		return nil, errors.New("join data: gateCA holds no certificate: render it again from the burst")
	}
	store, _, err := net.SplitHostPort(c.Join.Store)
	if err != nil {
		store = c.Join.Store
	}
	f, err := cache.New(cache.Config{
		Burst: c.Join.Burst, Gate: gate, Transport: cache.Transport(c.Certificate, cas),
		Hosts: []string{store}, Dir: filepath.Join(dir, "cache"), Results: filepath.Join(dir, "results"), Local: pods.local, Own: pods.own,
		Random: rand.Reader, Now: c.Wall, Log: c.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("start the S3 front: %w", err)
	}
	return cacheFront{Front: f, burst: c.Join.Burst, dir: filepath.Join(dir, "cache")}, nil
}

// Stage implements front. Without a stage the front caches on demand.
func (f cacheFront) Stage(ctx context.Context, key seal.DataKey, s *link.Stage) error {
	if s == nil {
		return f.Unlock(key, datasync.Manifest{Burst: f.burst})
	}
	m, err := f.Manifest(ctx, s.ManifestURL, s.ManifestSHA256, key, s.ManifestKey)
	if err != nil {
		return fmt.Errorf("read the manifest of burst %s: %w", f.burst, err)
	}
	if err := f.Unlock(key, m); err != nil {
		return fmt.Errorf("unlock the cache of burst %s: %w", f.burst, err)
	}
	if err := f.Prefetch(ctx); err != nil {
		return fmt.Errorf("fetch the staged data of burst %s: %w", f.burst, err)
	}
	return nil
}

// Lock implements front. The front would unlink its files as they are; they
// are moved aside, so that the erasing of the area finds and overwrites them.
func (f cacheFront) Lock() error {
	moveErr := os.Rename(f.dir, f.dir+".erase")
	if errors.Is(moveErr, fs.ErrNotExist) {
		moveErr = nil
	}
	_, err := f.Wipe()
	return errors.Join(err, moveErr)
}

// listener serves a front at an address and can be asked to be gone.
type listener struct {
	server *http.Server
	socket net.Listener
	addr   string
	failed chan error
}

// listen begins to serve at addr.
func listen(addr string, h http.Handler) (*listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for jobs at %s: %w: choose another --front", addr, err)
	}
	s := &listener{
		server: &http.Server{Handler: h, ReadHeaderTimeout: time.Minute, ConnContext: withPeer},
		socket: l, addr: l.Addr().String(), failed: make(chan error, 1),
	}
	go func() { s.failed <- s.server.Serve(l) }()
	return s, nil
}

// stop closes the listener and all connections and tries whether anything
// still answers.
func (s *listener) stop(ctx context.Context) error {
	err := s.server.Close()
	// A server that has not begun to serve does not know its socket yet.
	if closed := s.socket.Close(); closed != nil && !errors.Is(closed, net.ErrClosed) {
		err = errors.Join(err, closed)
	}
	conn, dialErr := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", s.addr)
	if dialErr == nil {
		return errors.Join(err, fmt.Errorf("something still answers at %s", s.addr), conn.Close())
	}
	return err
}

// staging lets the cache be filled until it is forbidden. The front must not
// get the key again once it has been locked.
type staging struct {
	mu        sync.Mutex // held while the cache is filled
	once      sync.Once
	forbidden chan struct{}
}

var errForbidden = errors.New("the node is being wiped")

// run calls fill with a context that ends when filling is forbidden.
func (s *staging) run(ctx context.Context, fill func(context.Context) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	defer close(done)
	select {
	case <-s.forbidden:
		return errForbidden
	default:
	}
	go func() {
		select {
		case <-s.forbidden:
			cancel(errForbidden)
		case <-done:
		}
	}()
	return fill(ctx)
}

// forbid ends filling for good. It is an error when what runs does not give
// way before ctx ends.
func (s *staging) forbid(ctx context.Context) error {
	s.once.Do(func() { close(s.forbidden) })
	for !s.mu.TryLock() {
		select {
		case <-ctx.Done():
			return errors.New("the cache is still being filled")
		case <-time.After(10 * time.Millisecond):
		}
	}
	s.mu.Unlock()
	return nil
}

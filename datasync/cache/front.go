package cache

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/s3wire"
	"spillway.dev/spillway/datasync/seal"
)

// Front is the S3 front of one burst node. It is an http.Handler; serve it
// with a plain http.Server, never behind a ServeMux, which cleans paths.
type Front struct {
	cfg     Config
	shelf   *shelf
	uploads *journal
	count   counters

	vault  vault
	ctx    context.Context // ends with Wipe
	stop   context.CancelFunc
	active sync.Map // *http.ResponseController of answers that need the key
}

// vault holds the data key and counts who works with it.
type vault struct {
	mu    sync.Mutex
	key   seal.DataKey
	open  bool
	wiped bool
	users sync.WaitGroup
}

// take returns the key; the caller must call users.Done. It is false when
// there is no key.
func (v *vault) take() (seal.DataKey, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.open {
		v.users.Add(1)
	}
	return v.key, v.open
}

// close destroys the key and waits until nobody works with a copy of it.
func (v *vault) close() {
	v.mu.Lock()
	v.key.Destroy()
	v.open, v.wiped = false, true
	v.mu.Unlock()
	v.users.Wait()
}

// New returns a front without key and manifest: a plain passage.
func New(cfg Config) (*Front, error) {
	if cfg.Gate == nil || cfg.Gate.Host == "" {
		return nil, errors.New("front: Config.Gate names no host: give the base URL of the on-prem gate")
	}
	if cfg.Transport == nil || cfg.Random == nil || cfg.Now == nil {
		return nil, errors.New("front: Config.Transport, Random and Now are required")
	}
	fetch := http.Client{}
	if cfg.Fetch != nil {
		fetch = *cfg.Fetch
	}
	fetch.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	cfg.Fetch = &fetch
	if cfg.MaxManifest == 0 {
		cfg.MaxManifest = 256 << 20
	}
	if cfg.Local == nil {
		local, err := onThisHost()
		if err != nil {
			return nil, fmt.Errorf("front: %w", err)
		}
		cfg.Local = local
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s, err := openShelf(cfg.Dir, cfg.MaxBytes)
	if err != nil {
		return nil, fmt.Errorf("front: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	kept := newJournal(cfg.Results != "", func(err error) { cfg.Log.Error("results are known in memory only", "err", err) })
	return &Front{cfg: cfg, shelf: s, uploads: kept, ctx: ctx, stop: stop}, nil
}

// gatePatience is how long a request waits for a gate that is not there: the
// controller restarts, or another takes the lead, and the job need not know.
const gatePatience = time.Minute

// patient dials again while nobody listens. Nothing was sent yet, so a request
// of any method may wait.
func patient(dial func(context.Context, string, string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, gatePatience)
		defer cancel()
		for {
			c, err := dial(ctx, network, address)
			if err == nil || !errors.Is(err, syscall.ECONNREFUSED) {
				return c, err
			}
			select {
			case <-ctx.Done():
				return nil, err
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
}

// Transport reaches the gate over TLS with the node's certificate, which cert
// returns anew for each handshake. It keeps connections, and changes nothing
// about bodies.
func Transport(cert func() (*tls.Certificate, error), gateCA *x509.CertPool) *http.Transport {
	return &http.Transport{
		DialContext:           patient((&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext),
		DisableCompression:    true,
		MaxIdleConnsPerHost:   256,
		IdleConnTimeout:       90 * time.Second,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: 5 * time.Second,
		TLSClientConfig: &tls.Config{
			MinVersion: tls.VersionTLS13,
			RootCAs:    gateCA,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return cert()
			},
		},
	}
}

// onThisHost accepts loopback and the addresses that this host has now.
func onThisHost() (func(netip.Addr) bool, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list own addresses: %w", err)
	}
	own := map[netip.Addr]bool{}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own[p.Addr().Unmap()] = true
		}
	}
	return func(a netip.Addr) bool { return a.IsLoopback() || own[a.Unmap()] }, nil
}

// Unlock gives the front the burst's data key and manifest; from then on it
// caches. It may be called again with a newer manifest. Files on the disk
// that the manifest does not name are removed.
func (f *Front) Unlock(key seal.DataKey, m datasync.Manifest) error {
	if m.Burst != f.cfg.Burst {
		return fmt.Errorf("front of burst %s: the manifest is of burst %s", f.cfg.Burst, m.Burst)
	}
	f.vault.mu.Lock()
	defer f.vault.mu.Unlock()
	if f.vault.wiped {
		return fmt.Errorf("front of burst %s: it is wiped", f.cfg.Burst)
	}
	if err := f.shelf.adopt(f.cfg.Burst, m); err != nil {
		return fmt.Errorf("front of burst %s: %w", f.cfg.Burst, err)
	}
	f.uploads.unlock(func() (*kept, []change, error) {
		return openKept(f.cfg.Results, f.cfg.Burst, key, f.cfg.Random)
	})
	f.vault.key, f.vault.open = key, true
	return nil
}

// Wipe ends all answers that need the key, destroys the front's copy of the key
// and removes all entries. The front is a plain passage afterwards and can't
// be unlocked again. Errors name what could not be removed; Wipe may be
// repeated.
func (f *Front) Wipe() (Wiped, error) {
	f.stop()
	f.active.Range(func(rc, _ any) bool {
		// A client that stopped reading must not hold up the wipe.
		_ = rc.(*http.ResponseController).SetWriteDeadline(time.Unix(1, 0))
		return true
	})
	f.vault.close()
	closeErr := f.uploads.lock()
	w, err := f.shelf.wipe()
	return w, errors.Join(closeErr, err)
}

// Uploads lists what jobs wrote and did not delete again, by bucket and key;
// after [Front.Unlock] also what they wrote through a front before this one,
// if Config.Results kept it.
func (f *Front) Uploads() []Upload { return f.uploads.list() }

// Stats returns the counters.
func (f *Front) Stats() Stats {
	s := f.count.snapshot()
	s.Objects, s.ObjectsLocal = f.shelf.staged()
	return s
}

// ServeHTTP implements [http.Handler].
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !f.fromHere(r) {
		f.count.refused.Add(1)
		s3wire.Refuse(w, r, http.StatusForbidden, "AccessDenied", "This S3 front serves its own node only.")
		return
	}
	if r.Method == http.MethodConnect {
		s3wire.Refuse(w, r, http.StatusMethodNotAllowed, "MethodNotAllowed", "This is an S3 front, not a proxy.")
		return
	}
	target, err := s3wire.ReadTarget(r, f.cfg.Hosts, f.cfg.Hosts)
	if err != nil {
		f.pass(w, r, "host")
		return
	}
	if r.Method == http.MethodHead && f.headPinned(w, r, target) {
		return
	}
	if r.Method != http.MethodGet {
		f.count.passed.Add(1)
		f.write(w, r, target)
		return
	}
	if why := notCacheable(r, target); why != "" {
		f.pass(w, r, why)
		return
	}
	f.get(w, r, target)
}

func (f *Front) fromHere(r *http.Request) bool {
	addr, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && f.cfg.Local(addr.Addr())
}

// pass sends the request on and the answer back, and counts why it was not
// cached.
func (f *Front) pass(w http.ResponseWriter, r *http.Request, why string) {
	f.count.passed.Add(1)
	f.count.notCached(why)
	resp, err := f.forward(r, nil)
	if err != nil {
		f.unreachable(w, r, err)
		return
	}
	f.answer(w, resp, nil)
}

// forward sends the request to the gate, with a change that no signature
// covers if any.
func (f *Front) forward(r *http.Request, change func(*http.Request)) (*http.Response, error) {
	out := s3wire.Forward(r.Context(), r, f.cfg.Gate)
	if change != nil {
		change(out)
	}
	return f.cfg.Transport.RoundTrip(out)
}

func (f *Front) answer(w http.ResponseWriter, resp *http.Response, observe func([]byte)) {
	s3wire.Answer(w, resp, func(p []byte) {
		f.count.upstream.Add(int64(len(p)))
		if observe != nil {
			observe(p)
		}
	})
}

// unreachable tells the client to try again: S3 clients do so on a 503.
func (f *Front) unreachable(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, context.Canceled) {
		panic(http.ErrAbortHandler) // the client is gone
	}
	f.cfg.Log.Warn("gate not reached", "gate", f.cfg.Gate.Host, "err", err)
	s3wire.Refuse(w, r, http.StatusServiceUnavailable, "ServiceUnavailable",
		"The store at home cannot be reached from this node right now; try again.")
}

// notCacheable says why a GET must go through unchanged; empty means that it
// may be answered from the disk.
func notCacheable(r *http.Request, t s3wire.Target) string {
	if t.Bucket == "" || t.Key == "" {
		return "not an object"
	}
	// cases: H2 hybrid-cache 2.6.0 (partNumber), response-*, versionId, acl ...
	switch _, subs, err := s3wire.SubResources(r); {
	case err != nil:
		return "query"
	case len(subs) > 0:
		return "query " + strings.ToLower(subs[0])
	}
	for _, name := range []string{"If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range"} {
		if _, ok := r.Header[name]; ok {
			return "conditional" // cases: H5 hybrid-cache 1.14.0
		}
	}
	for name := range r.Header {
		switch name := strings.ReplaceAll(strings.ToLower(name), "_", "-"); {
		case strings.HasPrefix(name, "x-amz-server-side-encryption"):
			return "sse-c"
		case strings.HasPrefix(name, "x-rgw-"), name == "x-amz-cache":
			return "rgw" // its answer has no body, or another range than the request says
		}
	}
	if sig, err := s3wire.ReadSignature(r); err != nil || sig.Scheme == "v2" {
		// Ceph's gateway takes x-rgw-auth for a header that a signature of
		// version 2 covers, and refuses the request.
		return "signature"
	}
	if _, ok := r.Header["Origin"]; ok {
		return "origin" // the answer has headers for this origin
	}
	if r.ContentLength != 0 {
		return "body"
	}
	return ""
}

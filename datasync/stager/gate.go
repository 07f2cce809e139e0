package stager

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/s3wire"
)

// Grant is a part of the source store that a burst may reach.
type Grant struct {
	Bucket  string
	Prefix  string   // bytes as they are; empty means the whole bucket
	Methods []string // HTTP methods; GET includes HEAD and the listing of the prefix
}

// ref is the grant without its methods.
func (g Grant) ref() datasync.Ref { return datasync.Ref{Bucket: g.Bucket, Prefix: g.Prefix} }

// GateConfig is what a Gate needs.
type GateConfig struct {
	Store     *url.URL                                  // the source store; only scheme and host are used
	Hosts     []string                                  // the store's names as jobs write them, without port
	Domains   []string                                  // names under which the store itself reads bucket.NAME as a bucket; none: path style only
	NodeBurst func(node string) (burst string, ok bool) // which burst a node belongs to now
	Audit     func(Audit)                               // one call per refused request; nil means none
	Transport http.RoundTripper                         // nil means one of its own
	Now       func() time.Time
	// Patience is how long a request of a burst waits of which nothing was
	// declared yet; 0 refuses it at once.
	Patience time.Duration
}

// Audit is one refused request. It holds no credential.
type Audit struct {
	At     time.Time `json:"at"`
	Node   string    `json:"node"`
	Burst  string    `json:"burst"`
	Remote string    `json:"remote"`
	Method string    `json:"method"`
	Bucket string    `json:"bucket"`
	Key    string    `json:"key"`
	Reason string    `json:"reason"`
}

// Gate is the only way from burst nodes to the source store: an http.Handler
// for a server with [GateTLS]. Serve it without a ServeMux.
//
// The gate lets a request through when it comes with a node's certificate,
// the node belongs to a burst, the burst's lease has not ended, and bucket,
// key and method lie in its grants. It changes nothing about the request. The
// store still decides whether the job's own signature is good.
type Gate struct {
	cfg GateConfig

	mu      sync.Mutex
	grants  map[string]allowance
	changed chan struct{} // closed and replaced when grants are declared
}

// allowance is what one burst may do.
type allowance struct {
	until  time.Time
	grants []Grant
}

// NewGate returns a gate that lets nothing through before [Gate.Allow].
func NewGate(cfg GateConfig) *Gate {
	if cfg.Transport == nil {
		cfg.Transport = &http.Transport{
			DisableCompression: true, MaxIdleConnsPerHost: 256,
			IdleConnTimeout: 90 * time.Second, ExpectContinueTimeout: 5 * time.Second,
		}
	}
	if cfg.Audit == nil {
		cfg.Audit = func(Audit) {}
	}
	return &Gate{cfg: cfg, grants: map[string]allowance{}, changed: make(chan struct{})}
}

// Allow declares what a burst may reach until a time, in place of what was
// declared before. Grants live in memory: the controller declares them again
// after a restart and with every lease.
func (g *Gate) Allow(burst string, until time.Time, grants []Grant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.grants[burst] = allowance{until: until, grants: slices.Clone(grants)}
	close(g.changed)
	g.changed = make(chan struct{})
}

// Revoke ends a burst's access at once, that of requests under way too.
func (g *Gate) Revoke(burst string) {
	g.Allow(burst, time.Time{}, nil) // kept: a revoked burst is refused at once
}

// look returns what a burst may do now, and a channel that is closed when
// anything is declared.
func (g *Gate) look(burst string) (may allowance, ok bool, changed <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	may, ok = g.grants[burst]
	return may, ok, g.changed
}

// declared returns what a burst may do. A burst of which nothing was declared
// yet is waited for: the controller has just restarted.
func (g *Gate) declared(ctx context.Context, burst string) (allowance, bool) {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Patience)
	defer cancel()
	for {
		may, ok, changed := g.look(burst)
		if ok || g.cfg.Patience == 0 {
			return may, ok
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return allowance{}, false
		}
	}
}

// lasting returns a context that ends with the burst's access: with its lease,
// unless that is extended meanwhile, or when it is revoked.
func (g *Gate) lasting(ctx context.Context, burst string) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer cancel()
		for {
			may, _, changed := g.look(burst)
			left := may.until.Sub(g.cfg.Now())
			if left <= 0 {
				return
			}
			select {
			case <-changed:
			case <-time.After(left):
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() {
		cancel()
		<-ended
	}
}

// ServeHTTP implements [http.Handler].
func (g *Gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	line := Audit{At: g.cfg.Now().UTC(), Remote: r.RemoteAddr, Method: r.Method}
	if err := g.admit(r, &line); err != nil {
		line.Reason = err.Error()
		g.cfg.Audit(line)
		status, code := http.StatusForbidden, "AccessDenied"
		if errors.Is(err, errNotOffered) {
			status, code = http.StatusNotImplemented, "NotImplemented"
		}
		s3wire.Refuse(w, r, status, code, "Refused by the gate before the store: "+line.Reason+".")
		return
	}
	ctx, done := g.lasting(r.Context(), line.Burst)
	defer done()
	resp, err := g.cfg.Transport.RoundTrip(s3wire.Forward(ctx, r, g.cfg.Store))
	if errors.Is(err, context.Canceled) {
		panic(http.ErrAbortHandler) // the node is gone, or its time is over
	}
	if err != nil {
		s3wire.Refuse(w, r, http.StatusServiceUnavailable, "ServiceUnavailable", "The gate cannot reach the store right now; try again.")
		return
	}
	s3wire.Answer(w, resp, nil)
}

// admit decides about one request. Every error is a refusal with its reason.
func (g *Gate) admit(r *http.Request, line *Audit) error {
	node, err := nodeOf(r)
	if err != nil {
		return err
	}
	line.Node = node
	burst, ok := g.cfg.NodeBurst(node)
	if !ok || burst == "" {
		return fmt.Errorf("node %s belongs to no burst", node)
	}
	line.Burst = burst
	may, ok := g.declared(r.Context(), burst)
	if !ok || !g.cfg.Now().Before(may.until) {
		return fmt.Errorf("burst %s has no lease at this time", burst)
	}
	target, err := s3wire.ReadTarget(r, g.cfg.Hosts, g.cfg.Domains)
	if err != nil {
		return err
	}
	line.Bucket, line.Key = target.Bucket, target.Key
	loose, err := s3wire.UnsignedAmz(r)
	if err != nil {
		return err
	}
	if len(loose) > 0 {
		return fmt.Errorf("header %s is not signed by the client", loose[0])
	}
	return may.check(r, target)
}

// errNotOffered says that a function of S3 is not to be had from a burst node,
// as on stores that do not have it: programs such as s3cmd then copy an object
// without its access list instead of giving up.
var errNotOffered = errors.New("is not for burst nodes")

// check decides about bucket, key, method and sub-resources.
func (a allowance) check(r *http.Request, t s3wire.Target) error {
	query, names, err := s3wire.SubResources(r)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !useful(name) && (t.Key == "" || !aboutObject(r.Method, name)) {
			if strings.HasPrefix(strings.ToLower(name), "x-amz-") {
				return fmt.Errorf("%s in the query is not for burst nodes", name)
			}
			return fmt.Errorf("sub-resource %q %w", name, errNotOffered)
		}
	}
	switch {
	case t.Bucket == "":
		return errors.New("listing of buckets is not for burst nodes")
	case t.Key == "":
		return a.checkBucket(r, t, query, names)
	}
	if err := a.allow(r.Method, t); err != nil {
		return err
	}
	from, copied, err := s3wire.ReadCopySource(r)
	if err != nil {
		return err
	}
	if copied {
		return a.allow(http.MethodGet, from)
	}
	return nil
}

// aboutObject says whether a sub-resource is one that programs ask of an object
// that they copy: aws its tags, s3cmd who may read it. To change the latter
// could open it to the world.
func aboutObject(method, name string) bool {
	return name == "tagging" || name == "acl" && method == http.MethodGet
}

// useful says whether a query parameter is one that plain S3 clients send
// about objects and listings; policy, lifecycle and the like are not among
// them. Of the headers that a presigned URL may carry instead,
// those about checksums and the object's own metadata are.
func useful(name string) bool {
	switch name {
	case "partNumber", "uploadId", "uploads", "versionId", "versions", "delete", "location", "attributes",
		"list-type", "prefix", "delimiter", "max-keys", "marker", "start-after", "continuation-token", "encoding-type",
		"fetch-owner", "key-marker", "version-id-marker", "upload-id-marker", "max-uploads", "max-parts", "part-number-marker":
		return true
	}
	lower := strings.ToLower(name)
	return strings.HasPrefix(name, "response-") || lower == "x-amz-sdk-checksum-algorithm" ||
		strings.HasPrefix(lower, "x-amz-checksum-") || strings.HasPrefix(lower, "x-amz-meta-")
}

// checkBucket decides about requests to a bucket as such.
func (a allowance) checkBucket(r *http.Request, t s3wire.Target, query url.Values, names []string) error {
	switch {
	case r.Method == http.MethodHead, r.Method == http.MethodGet && slices.Equal(names, []string{"location"}):
		if slices.ContainsFunc(a.grants, func(g Grant) bool { return g.Bucket == t.Bucket }) {
			return nil
		}
		return fmt.Errorf("bucket %s is not among the burst's", t.Bucket)
	case r.Method == http.MethodGet:
		if len(query["prefix"]) > 1 {
			return errors.New("the listing has two prefixes")
		}
		return a.allow(http.MethodGet, s3wire.Target{Bucket: t.Bucket, Key: query.Get("prefix")})
	case r.Method == http.MethodPost && query.Has("delete"):
		return a.checkDeletes(r, t)
	}
	return fmt.Errorf("%s of a bucket is not for burst nodes", r.Method)
}

// maxDeletes bounds the document of a DeleteObjects request: 1,000 keys of
// 1,024 bytes, escaped.
const maxDeletes = 8 << 20

// checkDeletes reads the keys of a DeleteObjects request and puts the body
// back.
func (a allowance) checkDeletes(r *http.Request, t s3wire.Target) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxDeletes+1))
	if err != nil || len(body) > maxDeletes {
		return errors.New("the list of keys to delete can't be read")
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	var list struct {
		Object []struct{ Key []string }
	}
	if err := xml.Unmarshal(body, &list); err != nil || len(list.Object) == 0 {
		return errors.New("the list of keys to delete can't be read")
	}
	for _, o := range list.Object {
		if len(o.Key) != 1 {
			return errors.New("the list of keys to delete can be read in two ways")
		}
		if err := a.allow(http.MethodDelete, s3wire.Target{Bucket: t.Bucket, Key: o.Key[0]}); err != nil {
			return err
		}
	}
	return nil
}

// allow says whether a grant covers the object for the method, whichever way
// the store reads the path.
func (a allowance) allow(method string, t s3wire.Target) error {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	clean := t.Cleaned()
	for _, g := range a.grants {
		if slices.Contains(g.Methods, method) && g.ref().Covers(t.Bucket, t.Key) && covers(g, clean, t) {
			return nil
		}
	}
	return fmt.Errorf("%s of %s is not among what the burst may reach", method, t)
}

// covers compares the cleaned form; a prefix that isn't clean itself is
// compared as it is only.
func covers(g Grant, clean, t s3wire.Target) bool {
	if clean == t {
		return true
	}
	prefix := s3wire.Target{Bucket: g.Bucket, Key: g.Prefix}.Cleaned()
	return clean.Bucket == prefix.Bucket && strings.HasPrefix(clean.Key, prefix.Key)
}

// nodeOf reads the node's name from its verified certificate.
func nodeOf(r *http.Request) (string, error) {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return "", errors.New("the connection has no verified certificate of a node")
	}
	subject := r.TLS.VerifiedChains[0][0].Subject
	node, ok := strings.CutPrefix(subject.CommonName, "system:node:")
	if !ok || node == "" || !slices.Contains(subject.Organization, "system:nodes") {
		return "", fmt.Errorf("certificate of %q is not a node's", subject.CommonName)
	}
	return node, nil
}

// GateTLS is the server side of the gate: it demands a client certificate
// signed by the cluster CA (PEM).
func GateTLS(cert tls.Certificate, clusterCA []byte) (*tls.Config, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(clusterCA) {
		return nil, errors.New("gate: the cluster CA holds no PEM certificate")
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{cert},
		ClientCAs:    pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		NextProtos:   []string{"http/1.1"},
	}, nil
}

package link

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"sync"
	"time"
)

// HoldFor is how long a hub holds a request when it has nothing new to say.
const HoldFor = 15 * time.Second

// HubConfig is what a hub needs. All fields but Hold are required.
type HubConfig struct {
	// ClusterCA signs node certificates.
	ClusterCA *x509.CertPool
	// NodeBurst says which burst a node belongs to: "" for an on-prem node,
	// ok false for a node that nobody expects. It is asked on every request,
	// so a burst that ended takes its nodes' voice away at once.
	NodeBurst func(node string) (burst string, ok bool)
	// Now is the controller's clock.
	Now func() time.Time
	// Hold replaces HoldFor when it is not zero.
	Hold time.Duration
}

// Hub is the controller's side: an HTTP handler that keeps the newest report
// of every node and the newest orders for it. It remembers nothing across a
// restart: the agents report again and the controller tells again.
type Hub struct {
	config   HubConfig
	instance string
	updates  chan string

	mu    sync.Mutex
	nodes map[string]*nodeState
}

type nodeState struct {
	orders  Orders
	version int64
	changed chan struct{} // closed when orders change or a newer request arrives
	turn    int64         // counts requests; only the newest may wait

	heard   bool
	hinted  bool // the node stands in updates and was not read since
	report  Report
	seen    time.Time
	earlier []Upload // of agent processes before this one
}

// NewHub returns a hub that knows no node yet. Serve it with [Hub.TLSConfig].
func NewHub(config HubConfig) *Hub {
	if config.Hold == 0 {
		config.Hold = HoldFor
	}
	return &Hub{
		config:   config,
		instance: rand.Text(),
		updates:  make(chan string, 4096),
		nodes:    map[string]*nodeState{},
	}
}

// TLSConfig returns the server configuration that a hub must be served with:
// TLS 1.3 and a client certificate of the cluster CA.
func (h *Hub) TLSConfig(server tls.Certificate) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{server},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    h.config.ClusterCA,
		MinVersion:   tls.VersionTLS13,
	}
}

// Report returns the newest report of a node, with all uploads that this hub
// has heard of, and when it arrived. ok is false when the node has not spoken.
func (h *Hub) Report(node string) (r Report, seen time.Time, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.nodes[node]
	if n == nil || !n.heard {
		return Report{}, time.Time{}, false
	}
	n.hinted = false
	r = n.report
	r.Uploads = merge(n.earlier, n.report.Uploads)
	return r, n.seen, true
}

// Tell replaces the orders for a node. Telling the same again is free; a node
// that waits hears a change at once.
func (h *Hub) Tell(node string, o Orders) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.node(node)
	if reflect.DeepEqual(n.orders, o) {
		return
	}
	n.orders = o
	n.version++
	n.wake()
}

// Forget drops all that is known of a node and lets its request go.
func (h *Hub) Forget(node string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := h.nodes[node]; n != nil {
		n.wake()
		delete(h.nodes, node)
	}
}

// Updates carries the name of a node that has reported since its report was
// last read, once. It is a hint for waking up early: a reader that is far
// behind misses hints and must look at its nodes now and then anyway.
func (h *Hub) Updates() <-chan string { return h.updates }

func (h *Hub) node(name string) *nodeState {
	n := h.nodes[name]
	if n == nil {
		n = &nodeState{changed: make(chan struct{})}
		h.nodes[name] = n
	}
	return n
}

func (n *nodeState) wake() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// ask is the body of a request.
type ask struct {
	Hub    string `json:"hub,omitempty"`  // the hub that Seen belongs to
	Seen   int64  `json:"seen,omitempty"` // version of the orders that the agent has
	Report Report `json:"report"`
}

// refusal is an HTTP status with a sentence for the agent's log.
type refusal struct {
	status int
	msg    string
}

func (r *refusal) Error() string { return r.msg }

func refuse(status int, format string, args ...any) error {
	return &refusal{status: status, msg: fmt.Sprintf(format, args...)}
}

// ServeHTTP takes one report and answers with the orders for the node.
func (h *Hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	received := h.config.Now()
	node, a, err := h.read(w, r, received)
	if err != nil {
		status := http.StatusInternalServerError
		if ref, ok := errors.AsType[*refusal](err); ok {
			status = ref.status
		}
		http.Error(w, err.Error(), status)
		return
	}
	turn, complete := h.accept(node, a.Report, received)
	if !complete {
		a.Hub = "" // do not hold the request: the whole list must come
	}
	reply, err := h.wait(r, node, a, turn)
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	reply.Received, reply.Sent = received, h.config.Now()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(reply) // the agent sees a broken answer and asks again
}

// read authenticates the request and returns what it says. Nothing is read
// from a stranger.
func (h *Hub) read(w http.ResponseWriter, r *http.Request, now time.Time) (string, ask, error) {
	if r.URL.Path != SyncPath {
		return "", ask{}, refuse(http.StatusNotFound, "there is nothing at %s: use POST %s", r.URL.Path, SyncPath)
	}
	if r.Method != http.MethodPost {
		return "", ask{}, refuse(http.StatusMethodNotAllowed, "method %s is not served: use POST %s", r.Method, SyncPath)
	}
	node, err := nodeOf(r.TLS, h.config.ClusterCA, now)
	if err != nil {
		return "", ask{}, err
	}
	burst, ok := h.config.NodeBurst(node)
	if !ok {
		return "", ask{}, refuse(http.StatusForbidden, "node %s is not expected: its burst has ended or never was", node)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	if _, tooBig := errors.AsType[*http.MaxBytesError](err); tooBig {
		return "", ask{}, refuse(http.StatusRequestEntityTooLarge, "report of node %s is larger than %d bytes: send fewer records at a time", node, MaxBody)
	}
	if err != nil {
		return "", ask{}, refuse(http.StatusBadRequest, "report of node %s broke off: %v", node, err)
	}
	var a ask
	if err := json.Unmarshal(body, &a); err != nil {
		return "", ask{}, refuse(http.StatusBadRequest, "report of node %s is not readable: %v", node, err)
	}
	if err := a.Report.check(node, burst, now); err != nil {
		return "", ask{}, err
	}
	return node, a, nil
}

// accept stores a checked report and returns the request's turn. complete is
// false, and nothing is stored, when the report leaves out a list of uploads
// that this hub does not have: without them it would look like a job without
// results.
func (h *Hub) accept(name string, r Report, now time.Time) (turn int64, complete bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.node(name)
	n.turn++
	n.wake() // an older request of this node is let go: one waits at a time
	same := string(r.HPKE) == string(n.report.HPKE)
	switch {
	case len(r.Uploads) > 0 || r.UploadsDigest == "":
	case same && n.heard && n.report.UploadsDigest == r.UploadsDigest:
		r.Uploads = n.report.Uploads
	default:
		return n.turn, false
	}
	if !same {
		n.earlier = merge(n.earlier, n.report.Uploads)
		n.earlier = n.earlier[max(0, len(n.earlier)-MaxUploads):]
	}
	n.report, n.seen, n.heard = r, now, true
	if !n.hinted {
		select {
		case h.updates <- name:
			n.hinted = true
		default:
		}
	}
	return n.turn, true
}

// merge returns a copy of both lists; of the same object the newer entry.
func merge(old, fresh []Upload) []Upload {
	var out []Upload
	replaced := map[[2]string]bool{}
	for _, u := range fresh {
		replaced[[2]string{u.Bucket, u.Key}] = true
	}
	for _, u := range old {
		if !replaced[[2]string{u.Bucket, u.Key}] {
			out = append(out, u)
		}
	}
	return append(out, fresh...)
}

// wait holds the request until the orders differ from what the agent has. It
// is an error when a newer request of the same node took its place: two
// processes that use one identity must not chase each other.
func (h *Hub) wait(r *http.Request, name string, a ask, turn int64) (Reply, error) {
	h.mu.Lock()
	n := h.node(name)
	reply := n.reply(h.instance)
	changed := n.changed
	h.mu.Unlock()
	if a.Hub != h.instance || a.Seen != reply.Version {
		return reply, nil
	}
	hold := time.NewTimer(h.config.Hold)
	defer hold.Stop()
	select {
	case <-changed:
	case <-hold.C:
	case <-r.Context().Done():
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if n != h.nodes[name] {
		return Reply{}, refuse(http.StatusConflict, "node %s is not expected any more", name)
	}
	if n.turn != turn {
		return Reply{}, refuse(http.StatusConflict, "a newer request of node %s took the place of this one: is a second agent running with its identity?", name)
	}
	return n.reply(h.instance), nil
}

func (n *nodeState) reply(hub string) Reply {
	return Reply{Orders: n.orders, Version: n.version, Hub: hub, Uploads: n.report.UploadsDigest}
}

package procnode

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"
)

// PodRecord is one container of a pod on this machine, as the agent reads it
// from GET /pods on the Unix socket DIR/node.sock. Pods that have ended stay
// listed until their object is gone; Finished says that they hold nothing.
type PodRecord struct {
	UID       string     `json:"uid"`
	Namespace string     `json:"namespace"`
	Name      string     `json:"name"`
	Owner     string     `json:"owner,omitempty"` // Kind/name of the controller
	Container string     `json:"container"`
	GPUs      []string   `json:"gpus,omitempty"` // device IDs
	Started   *time.Time `json:"started,omitempty"`
	Finished  *time.Time `json:"finished,omitempty"`
	IP        string     `json:"ip,omitempty"`
}

// Device is one GPU, as the agent reads it from GET /devices.
type Device struct {
	ID      string `json:"id"`
	Model   string `json:"model"`
	Healthy bool   `json:"healthy"`
}

// maxSocketPath is what the kernel takes for a Unix socket's address.
const maxSocketPath = 107

// serveSocket serves the agent: GET /pods, GET /devices, POST /stop (all pods
// end gracefully, no new ones start) and POST /poweroff. An optional JSON body
// {"reason": "..."} of the last two goes to the log and the pods' status.
// The folder's mode keeps others away.
func (n *node) serveSocket() error {
	path := n.config.socket()
	if len(path) > maxSocketPath {
		return fmt.Errorf("the socket path %s has %d characters and the kernel takes %d: choose a shorter --dir", path, len(path), maxSocketPath)
	}
	l, err := listenUnix(path)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /pods", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, n.podRecords()) })
	mux.HandleFunc("GET /devices", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, n.gpus.list()) })
	mux.HandleFunc("POST /stop", func(w http.ResponseWriter, r *http.Request) {
		n.stopPods(reasonOf(r))
		w.WriteHeader(http.StatusAccepted)
	})
	mux.HandleFunc("POST /poweroff", func(w http.ResponseWriter, r *http.Request) {
		n.log.Info("power off, asked by the agent", "reason", reasonOf(r))
		w.WriteHeader(http.StatusAccepted)
		n.pressPower()
	})
	n.serve(l, &http.Server{Handler: mux, ReadHeaderTimeout: headerWait})
	return nil
}

func reasonOf(r *http.Request) string {
	var body struct {
		Reason string `json:"reason"`
	}
	// No body, or one that isn't JSON, is a request without a reason.
	_ = json.NewDecoder(http.MaxBytesReader(nil, r.Body, 1<<16)).Decode(&body)
	return either(body.Reason, "asked by the agent")
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the reader has gone
}

// serve runs an HTTP server until power off.
func (n *node) serve(l net.Listener, s *http.Server) {
	n.servers = append(n.servers, s)
	go func() {
		if err := s.Serve(l); err != nil && err != http.ErrServerClosed {
			n.log.Error("a server of the machine ended", "address", l.Addr().String(), "error", err)
		}
	}()
}

package procnode

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"

	"spillway.dev/spillway/nodeagent"
)

// maxSocketPath is what the kernel takes for a Unix socket's address.
const maxSocketPath = 107

// maxAsk bounds what the agent may send, in bytes.
const maxAsk = 1 << 16

// serveSocket serves the agent on the Unix socket DIR/node.sock: GET /pods
// ([nodeagent.Pod], one a container; pods that have ended stay listed until
// their object is gone), GET /devices, POST /stop (all pods end, no new ones
// start), POST /poweroff. The folder's mode keeps others away.
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
		var ask nodeagent.StopRequest
		if !readJSON(w, r, &ask) {
			return
		}
		n.stopPods(either(ask.Reason, "asked by the agent"), time.Duration(ask.GraceSeconds)*time.Second)
		w.WriteHeader(http.StatusAccepted)
	})
	mux.HandleFunc("POST /poweroff", func(w http.ResponseWriter, r *http.Request) {
		var ask nodeagent.PowerOffRequest
		if !readJSON(w, r, &ask) {
			return
		}
		n.log.Info("power off, asked by the agent", "reason", ask.Reason)
		w.WriteHeader(http.StatusAccepted)
		_ = http.NewResponseController(w).Flush() // the answer goes before the power does
		n.pressPower()
	})
	n.serve(l, &http.Server{Handler: mux, ReadHeaderTimeout: headerWait})
	return nil
}

func readJSON(w http.ResponseWriter, r *http.Request, into any) bool {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxAsk)).Decode(into); err != nil {
		http.Error(w, "the request's body is not the expected JSON: "+err.Error(), http.StatusBadRequest)
		return false
	}
	return true
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

package procnode

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// apiServerName is the client that may read logs: the API server, by the
	// name that kubeadm and package controlplane give it.
	apiServerName = "kube-apiserver-kubelet-client"
	followPause   = 100 * time.Millisecond
	servingLife   = 365 * 24 * time.Hour
)

// serveKubelet serves the part of the kubelet's API that `kubectl logs` needs,
// on a free port, to the API server only.
func (n *node) serveKubelet() error {
	cert, err := selfSigned(n.config.Name)
	if err != nil {
		return err
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(n.config.joined.ClusterCA) {
		return errors.New("the cluster's authority is no PEM certificate: check --ca or the join data")
	}
	l, err := tls.Listen("tcp", address+":0", &tls.Config{
		Certificates: []tls.Certificate{cert},
		ClientAuth:   tls.VerifyClientCertIfGiven,
		ClientCAs:    clients,
		MinVersion:   tls.VersionTLS13,
	})
	if err != nil {
		return fmt.Errorf("port of the kubelet API: %w", err)
	}
	n.port = l.Addr().(*net.TCPAddr).Port
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	mux.HandleFunc("GET /pods", apiServerOnly(func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, n.podList()) }))
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", apiServerOnly(n.serveLog))
	n.serve(l, &http.Server{Handler: mux, ReadHeaderTimeout: headerWait})
	return nil
}

func apiServerOnly(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.VerifiedChains) == 0 || r.TLS.VerifiedChains[0][0].Subject.CommonName != apiServerName {
			http.Error(w, "only the API server may ask: use kubectl logs", http.StatusForbidden)
			return
		}
		next(w, r)
	}
}

func (n *node) podList() corev1.PodList {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := corev1.PodList{}
	list.APIVersion, list.Kind = "v1", "PodList"
	for _, w := range n.pods {
		pod := w.pod.DeepCopy()
		pod.Status = w.status()
		list.Items = append(list.Items, *pod)
	}
	return list
}

// serveLog sends a container's log: all or its last tailLines lines, at most
// limitBytes, of this run or the previous one; with follow until the run ends.
func (n *node) serveLog(w http.ResponseWriter, r *http.Request) {
	worker := n.find(r.PathValue("namespace"), r.PathValue("pod"))
	if worker == nil {
		http.Error(w, fmt.Sprintf("pod %s/%s is not on this node", r.PathValue("namespace"), r.PathValue("pod")), http.StatusNotFound)
		return
	}
	q := r.URL.Query()
	for _, option := range []string{"sinceSeconds", "sinceTime", "timestamps"} {
		if value := q.Get(option); value != "" && value != "false" {
			http.Error(w, "a process node's logs have no times: leave out "+option, http.StatusBadRequest)
			return
		}
	}
	previous := q.Get("previous") == "true"
	path, ended, ok := worker.log(r.PathValue("container"), previous)
	f, err := os.Open(path)
	if !ok || err != nil {
		http.Error(w, fmt.Sprintf("container %s has no log yet", r.PathValue("container")), http.StatusBadRequest)
		return
	}
	defer func() { _ = f.Close() }()
	if lines, err := strconv.Atoi(q.Get("tailLines")); err == nil {
		if err := seekLines(f, lines); err != nil {
			http.Error(w, "read the log: "+err.Error(), http.StatusInternalServerError)
			return
		}
	}
	var limited io.Writer = w
	if limit, err := strconv.ParseInt(q.Get("limitBytes"), 10, 64); err == nil {
		limited = &limitedWriter{w, limit}
	}
	if q.Get("follow") != "true" || previous {
		ended = func() bool { return true }
	}
	w.Header().Set("Content-Type", "text/plain")
	stream(r.Context(), limited, http.NewResponseController(w), f, ended)
}

// log finds the log of a container's run, and whether that run has ended.
func (w *worker) log(name string, previous bool) (path string, ended func() bool, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.containers {
		if c.spec.Name != name {
			continue
		}
		run := c.Restarts
		if previous {
			run--
		}
		return w.node.logPath(w.pod, name, run), func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return c.Restarts != run || c.ended()
		}, true
	}
	return "", nil, false
}

// stream copies what f has and will have until ended says that no more comes.
func stream(ctx context.Context, w io.Writer, flush *http.ResponseController, f *os.File, ended func() bool) {
	tick := time.NewTicker(followPause)
	defer tick.Stop()
	for {
		last := ended() // asked before the read: what was written before the end is read
		if _, err := io.Copy(w, f); err != nil || last {
			return
		}
		_ = flush.Flush() // a reader that has gone shows at the next write
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// seekLines moves f to the start of its last n lines.
func seekLines(f *os.File, n int) error {
	const block = 64 << 10
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil || n == 0 {
		return err
	}
	buf := make([]byte, block)
	seen, end := 0, size
	for end > 0 {
		start := max(0, end-block)
		part := buf[:end-start]
		if _, err := f.ReadAt(part, start); err != nil {
			return err
		}
		for i := len(part) - 1; i >= 0; i-- {
			if part[i] != '\n' || start+int64(i) == size-1 { // the last line's own end doesn't count
				continue
			}
			if seen++; seen == n {
				_, err := f.Seek(start+int64(i)+1, io.SeekStart)
				return err
			}
		}
		end = start
	}
	_, err = f.Seek(0, io.SeekStart)
	return err
}

// limitedWriter ends with an error after so many bytes.
type limitedWriter struct {
	w    io.Writer
	left int64
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	short := int64(len(p)) > l.left
	if short {
		p = p[:l.left]
	}
	n, err := l.w.Write(p)
	l.left -= int64(n)
	if err == nil && short {
		err = io.ErrShortWrite
	}
	return n, err
}

// selfSigned is the certificate of the kubelet API, as an unjoined kubelet
// makes it; the API server doesn't verify it.
func selfSigned(name string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make the serving key: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-time.Hour), NotAfter: now.Add(servingLife),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{name}, IPAddresses: []net.IP{net.ParseIP(address)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("sign the serving certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

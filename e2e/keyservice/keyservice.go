// Package keyservice is the test kit of key services: the promises that each
// keeps ([Run]), and a server that speaks the HTTP API of the transit secrets
// engine and can be told to misbehave ([Start]).
//
// The server keeps its keys in memory and believes every caller that has its
// token, so it proves nothing about a real Vault or OpenBao; it is never part
// of an installation or of the demo. What it does is taken from the public API
// reference, https://openbao.org/api-docs/.
//
// Words: a fault is a way to misbehave; a lost answer is one that was acted on
// and never arrives.
package keyservice

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"
)

// Faults are the ways in which a server misbehaves; the zero value is none.
type Faults struct {
	Sealed      bool   // 503 to everything (api-docs/index, "HTTP status codes")
	Denied      bool   // 403 to everything: a token without rights or beyond its time
	Standby     string // 307 to this server (api-docs/index, "307": a standby node)
	Silent      bool   // it never answers
	Busy        int    // so many requests are answered 429 first
	Lose        int    // so many requests are done and their answers lost first
	LoseOnly    string // method of the answers to lose; empty means any
	KeepDeleted bool   // a deletion answers 204 and deletes nothing
	SoftDelete  bool   // a deletion answers 204 and can be taken back
	MayCreate   bool   // the token has the capability "create" on encrypt
	Proxy404    bool   // something on the way answers 404 with {} to everything
	NotLevel    int    // so many requests are answered 412 first
}

// Server is a transit engine in memory behind TLS.
type Server struct {
	Mount, Namespace string // where the engine is; set before the first request

	http *httptest.Server

	mu     sync.Mutex
	engine engine
	token  string
	faults Faults
	ttl    int64
	asked  []string
}

// Start runs a server that knows one token; Close ends it.
func Start(token string) *Server {
	s := &Server{Mount: "transit", token: token, engine: engine{map[string]*namedKey{}}, ttl: 3600}
	s.http = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.http.TLS = &tls.Config{Certificates: []tls.Certificate{selfSigned()}, MinVersion: tls.VersionTLS12}
	s.http.Config.ErrorLog = log.New(io.Discard, "", 0) // refused handshakes are what tests want
	s.http.StartTLS()
	return s
}

// selfSigned makes a certificate for 127.0.0.1 that nobody else has.
func selfSigned() tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic("draw a key: " + err.Error())
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "key service"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic("sign a certificate: " + err.Error())
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// Close ends the server and every answer that waits.
func (s *Server) Close() {
	s.http.CloseClientConnections()
	s.http.Close()
}

// URL is the server's address.
func (s *Server) URL() string { return s.http.URL }

// CA holds the server's own certificate.
func (s *Server) CA() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	return pool
}

// Certificate is the server's own.
func (s *Server) Certificate() *x509.Certificate { return s.http.Certificate() }

// Misbehave sets what goes wrong from now on.
func (s *Server) Misbehave(f Faults) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = f
}

// Rotate makes the server know another token only.
func (s *Server) Rotate(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = token
}

// Asked returns every request so far as "METHOD path".
func (s *Server) Asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.asked...)
}

// Names returns the names of the keys there are.
func (s *Server) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name := range s.engine.keys {
		names = append(names, name)
	}
	return names
}

// Expose lets the key out of the engine: it may be exported, and was backed up.
func (s *Server) Expose(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.engine.keys[name]
	k.exportable, k.backup = true, true
}

// Delete deletes a key behind everybody's back.
func (s *Server) Delete(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.engine.keys, name)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	a, lost, silent := s.handle(r)
	switch {
	case silent:
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	case lost:
		panic(http.ErrAbortHandler) // the connection breaks without an answer
	case a.status == http.StatusTemporaryRedirect:
		w.Header().Set("Location", a.said[0])
		w.WriteHeader(a.status)
		return
	case a.status == http.StatusNoContent:
		w.WriteHeader(a.status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(a.status)
	body := map[string]any{"request_id": fmt.Sprintf("request-%d", len(s.Asked())), "data": a.data}
	if a.said != nil {
		body = map[string]any{"errors": a.said}
	}
	if a.data == nil && a.said == nil {
		body = map[string]any{}
	}
	_ = json.NewEncoder(w).Encode(body) // whoever went away hears nothing
}

func (s *Server) handle(r *http.Request) (a answer, lost, silent bool) {
	in := map[string]any{}
	_ = json.NewDecoder(r.Body).Decode(&in) // no body, no fields
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r.Method+" "+strings.TrimPrefix(r.URL.Path, "/v1/"))
	if s.faults.Silent {
		return answer{}, false, true
	}
	if a, wrong := s.fault(r); wrong {
		return a, false, false
	}
	a = s.route(r, in)
	if f := &s.faults; f.Lose > 0 && (f.LoseOnly == "" || f.LoseOnly == r.Method) {
		f.Lose--
		return a, true, false
	}
	return a, false, false
}

// fault is the answer of a server that does not get to act.
func (s *Server) fault(r *http.Request) (answer, bool) {
	f := &s.faults
	switch {
	case f.Proxy404:
		return answer{status: http.StatusNotFound}, true
	case f.Sealed:
		return refuse(http.StatusServiceUnavailable, "Vault is sealed"), true
	case f.Standby != "":
		return answer{status: http.StatusTemporaryRedirect, said: []string{f.Standby + r.URL.Path}}, true
	case f.Busy > 0:
		f.Busy--
		return refuse(http.StatusTooManyRequests, "request path %q: rate limit quota exceeded", r.URL.Path), true
	case f.NotLevel > 0:
		f.NotLevel--
		return refuse(http.StatusPreconditionFailed, "required index state not present"), true
	case f.Denied, r.Header.Get("X-Vault-Token") != s.token, r.Header.Get("X-Vault-Namespace") != s.Namespace:
		return refuse(http.StatusForbidden, "permission denied"), true
	}
	return answer{}, false
}

func (s *Server) route(r *http.Request, in map[string]any) answer {
	path := strings.TrimPrefix(r.URL.Path, "/v1/")
	if below, ok := strings.CutPrefix(path, s.Mount+"/"); ok {
		return s.engine.do(r.Method, below, in, &s.faults)
	}
	switch path { // api-docs/auth/token
	case "auth/token/renew-self":
		s.ttl = 3600
		return answer{status: http.StatusOK, data: map[string]any{}}
	case "auth/token/lookup-self":
		return answer{status: http.StatusOK, data: map[string]any{"ttl": s.ttl, "renewable": true}}
	}
	return refuse(http.StatusNotFound, "no handler for route %q. route entry not found.", path)
}

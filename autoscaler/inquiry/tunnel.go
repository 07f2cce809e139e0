package inquiry

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// deskServer is the inner server. It serves connections that come out of
// tunnels, and bounds each by patience.
func deskServer(handler http.Handler, c Config) *http.Server {
	http1 := &http.Protocols{}
	http1.SetHTTP1(true)
	return &http.Server{
		Handler: handler, Protocols: http1, MaxHeaderBytes: mostHeaders,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{c.Certificate}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS13},
		ReadHeaderTimeout: c.Limits.Patience, ReadTimeout: c.Limits.Patience, WriteTimeout: 6 * c.Limits.Patience, IdleTimeout: c.Limits.Patience,
		ErrorLog: log.New(io.Discard, "", 0), // strangers write there what they like
	}
}

// Close ends every tunnel.
func (s *Server) Close() error { return s.desk.Close() }

// Outer is the server of the outer connection.
func (s *Server) Outer(address string, certificate tls.Certificate) *http.Server {
	outer := deskServer(s, s.Config)
	outer.Addr, outer.TLSConfig = address, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	outer.WriteTimeout = 0 // the desk bounds what goes through a tunnel
	return outer
}

// ServeHTTP opens a tunnel to the desk. Nothing else is served outside of it.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || r.URL.Path != tunnelPath || !strings.EqualFold(r.Header.Get("Upgrade"), protocol) {
		http.Error(w, "this is the way in for spillway's own commands", http.StatusNotFound)
		return
	}
	select {
	case s.tunnels <- struct{}{}:
		defer func() { <-s.tunnels }()
	default:
		http.Error(w, "too many people ask at once: ask again in a few seconds", http.StatusServiceUnavailable)
		return
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "this connection can't be a tunnel", http.StatusBadRequest)
		return
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(s.Limits.Patience)) // the desk sets its own
	if buffered.Reader.Buffered() > 0 {
		return // nobody speaks before the tunnel is open
	}
	_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+protocol+"\r\n\r\n")
	if err == nil {
		_ = s.desk.ServeTLS(newSingle(conn), "", "") // it ends with the connection
	}
}

// single is a listener of one connection. It is over when that is closed.
type single struct {
	net.Conn
	first chan net.Conn
	over  chan struct{}
	once  sync.Once
}

func newSingle(c net.Conn) *single {
	s := &single{Conn: c, first: make(chan net.Conn, 1), over: make(chan struct{})}
	s.first <- s
	return s
}

// Accept implements [net.Listener].
func (s *single) Accept() (net.Conn, error) {
	select {
	case c := <-s.first:
		return c, nil
	case <-s.over:
		return nil, net.ErrClosed
	}
}

// Addr implements [net.Listener].
func (s *single) Addr() net.Addr { return s.LocalAddr() }

// Close ends the connection, and with it the listener.
func (s *single) Close() error {
	s.once.Do(func() { close(s.over) })
	return s.Conn.Close()
}

// open asks the outer end for a tunnel and returns it as a connection.
func open(ctx context.Context, outer http.RoundTripper, url string) (net.Conn, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", protocol)
	resp, err := outer.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		_ = resp.Body.Close()
		return nil, &closedError{resp.StatusCode, strings.TrimSpace(string(said))}
	}
	stream, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		_ = resp.Body.Close()
		return nil, errors.New("the API server's answer can't be written to: a proxy on the way does not know upgrades")
	}
	return tunnelled{stream}, nil
}

// closedError is the answer of the API server when there is no tunnel.
type closedError struct {
	status int
	said   string
}

func (e *closedError) Error() string {
	return fmt.Sprintf("the API server answers %d: %s", e.status, e.said)
}

// tunnelled is a tunnel as a connection. Its times are bounded by the context
// of each request, which closes it.
type tunnelled struct{ io.ReadWriteCloser }

func (tunnelled) LocalAddr() net.Addr              { return place{} }
func (tunnelled) RemoteAddr() net.Addr             { return place{} }
func (tunnelled) SetDeadline(time.Time) error      { return nil }
func (tunnelled) SetReadDeadline(time.Time) error  { return nil }
func (tunnelled) SetWriteDeadline(time.Time) error { return nil }

// place is where a tunnel leads.
type place struct{}

func (place) Network() string { return "tunnel" }
func (place) String() string  { return ServiceName }

package openstack

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"sync"
)

// Effect is what happens to a call on its way.
type Effect int

// The effects.
const (
	Refuse      Effect = iota // answered by the proxy, never forwarded
	AnswerAfter               // forwarded, then answered by the proxy
	LoseAnswer                // forwarded, then the connection is cut
	CutAnswer                 // forwarded, then the answer ends in the middle
	Hang                      // never answered nor forwarded
	Edit                      // forwarded, then the answer's body goes through Fault.Edit
)

// Fault makes calls go wrong that a real server would do right.
type Fault struct {
	Method string // empty: any
	Path   string // pattern for the path, for example "/servers$"
	Effect Effect
	Times  int // how many calls; 0 means one, below 0 all

	Status int // of Refuse and AnswerAfter, with Body and Header
	Body   string
	Header map[string]string
	Edit   func([]byte) []byte
}

// Call is a call that came by.
type Call struct {
	Method, Path string
	Status       int // 0: no answer was given
}

// Proxy is an HTTP proxy into a lab, with faults on order.
type Proxy struct {
	server    *httptest.Server
	transport *http.Transport

	mu     sync.Mutex
	faults []Fault
	calls  []Call
}

// NewProxy returns a running proxy; close it after use.
func (l *Lab) NewProxy() *Proxy {
	p := &Proxy{transport: &http.Transport{DialContext: l.Dial, MaxIdleConnsPerHost: 8}}
	p.server = httptest.NewServer(p)
	return p
}

// Close ends the proxy and all connections through it.
func (p *Proxy) Close() {
	p.server.CloseClientConnections()
	p.server.Close()
	p.transport.CloseIdleConnections()
}

// Client reaches the lab through the proxy.
func (p *Proxy) Client() (*http.Client, error) {
	via, err := url.Parse(p.server.URL)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(via), MaxIdleConnsPerHost: 8}}, nil
}

// Script appends faults. Each call takes the first one that fits it.
func (p *Proxy) Script(faults ...Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, faults...)
}

// Only forgets all faults but this one.
func (p *Proxy) Only(f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = []Fault{f}
}

// Calls lists what came by, oldest first.
func (p *Proxy) Calls() []Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

// take returns the fault for a call; ok is false when it goes well.
func (p *Proxy) take(r *http.Request) (f Fault, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, f := range p.faults {
		if f.Method != "" && f.Method != r.Method || !regexp.MustCompile(f.Path).MatchString(r.URL.Path) {
			continue
		}
		switch {
		case f.Times > 1:
			p.faults[i].Times--
		case f.Times >= 0:
			p.faults = slices.Delete(p.faults, i, i+1)
		}
		return f, true
	}
	return Fault{}, false
}

func (p *Proxy) log(r *http.Request, status int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, Call{r.Method, r.URL.Path, status})
}

// ServeHTTP forwards one call.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fault, ordered := p.take(r)
	switch {
	case ordered && fault.Effect == Hang:
		p.log(r, 0)
		_, _ = io.Copy(io.Discard, r.Body) // only then does the server see the caller leave
		<-r.Context().Done()
		return
	case ordered && fault.Effect == Refuse:
		p.answer(w, r, fault)
		return
	}
	// A caller that leaves takes nothing back.
	res, body, err := p.forward(context.WithoutCancel(r.Context()), r)
	switch {
	case err != nil:
		p.log(r, http.StatusBadGateway)
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	case ordered && fault.Effect == LoseAnswer:
		p.log(r, 0)
		panic(http.ErrAbortHandler)
	case ordered && fault.Effect == AnswerAfter:
		p.answer(w, r, fault)
		return
	case ordered && fault.Effect == Edit:
		body = fault.Edit(body)
	}
	p.log(r, res.StatusCode)
	for name, values := range res.Header {
		if name != "Content-Length" && name != "Connection" {
			w.Header()[name] = values
		}
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	w.WriteHeader(res.StatusCode)
	if ordered && fault.Effect == CutAnswer {
		_, _ = w.Write(body[:len(body)/2])
		_ = http.NewResponseController(w).Flush() // an answer that has not begun would be asked for again
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(body) // a caller that has gone needs no answer
}

func (p *Proxy) forward(ctx context.Context, r *http.Request) (*http.Response, []byte, error) {
	in, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, nil, err
	}
	out, err := http.NewRequestWithContext(ctx, r.Method, r.URL.String(), bytes.NewReader(in))
	if err != nil {
		return nil, nil, err
	}
	out.Header = r.Header.Clone()
	out.Header.Del("Proxy-Connection")
	out.Header.Del("Accept-Encoding")
	res, err := p.transport.RoundTrip(out)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	return res, body, err
}

func (p *Proxy) answer(w http.ResponseWriter, r *http.Request, f Fault) {
	p.log(r, f.Status)
	w.Header().Set("Content-Type", "application/json")
	for name, value := range f.Header {
		w.Header().Set(name, value)
	}
	w.WriteHeader(f.Status)
	_, _ = io.WriteString(w, f.Body)
}

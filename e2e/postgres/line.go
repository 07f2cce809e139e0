package postgres

import (
	"bytes"
	"fmt"
	"net"
	"sync"
)

// Cut is where a [Line] breaks.
type Cut int

const (
	// BeforeCommit cuts when a client sends a commit: the server never gets it.
	BeforeCommit Cut = iota + 1
	// AfterCommit cuts when the server has committed: the client gets no answer.
	AfterCommit
)

// Line is a TCP line to a server, which a test can cut.
type Line struct {
	listener net.Listener
	to       string

	mu      sync.Mutex
	next    Cut  // 0 is none
	forGood bool // what is cut stays cut
	open    map[net.Conn]bool
}

// NewLine returns a line to an address. It listens on a free port of the loopback.
func NewLine(to string) (*Line, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("line to %s: %w", to, err)
	}
	line := &Line{listener: l, to: to, open: make(map[net.Conn]bool)}
	go line.serve()
	return line, nil
}

// Address is host:port of this end.
func (l *Line) Address() string { return l.listener.Addr().String() }

// Arm cuts the line at the next commit, once. New connections pass again behind
// that, unless it is for good.
func (l *Line) Arm(c Cut, forGood bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next, l.forGood = c, forGood
}

// Close ends the line and all connections on it.
func (l *Line) Close() {
	_ = l.listener.Close() // it is closed in any case
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		_ = c.Close()
	}
}

func (l *Line) serve() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", l.to)
		if err != nil {
			_ = client.Close() // that is what the client is to see
			continue
		}
		l.mu.Lock()
		l.open[client], l.open[server] = true, true
		l.mu.Unlock()
		go l.carry(client, server, BeforeCommit, []byte("commit\x00"))
		go l.carry(server, client, AfterCommit, []byte("COMMIT\x00"))
	}
}

// carry carries bytes until an end closes, or the line is to be cut at a word in
// them, which it keeps. Both ends are closed then.
func (l *Line) carry(from, to net.Conn, cut Cut, word []byte) {
	defer func() {
		_, _ = from.Close(), to.Close() // the other direction may have been first
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.open, from)
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 && bytes.Contains(buffer[:n], word) && l.fires(cut) {
			return
		}
		if _, writeErr := to.Write(buffer[:n]); writeErr != nil || err != nil {
			return
		}
	}
}

// fires reports whether the line is to be cut here, and disarms it.
func (l *Line) fires(at Cut) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next != at {
		return false
	}
	if l.next = 0; l.forGood {
		_ = l.listener.Close() // it is closed in any case
	}
	return true
}

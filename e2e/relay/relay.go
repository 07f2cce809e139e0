// Package relay is a TCP relay that does to a connection what long lines and
// middleboxes do: delay it, throttle it, cut it, end it early, forget it, or
// change a byte. For tests only; the kernel of the test machine has no netem.
//
// Vocabulary: the client is who connects to the relay, the server is where the
// relay connects to. A [Line] is how good the way is, all the time. A [Break]
// happens once, at a certain byte: breaks wait in a queue, and the next one
// counts from where the one before has struck, over all connections, so that
// it strikes whatever connection carries that byte.
package relay

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Line is the quality of the way in each direction. The zero value is as good
// as the host.
type Line struct {
	Delay time.Duration // from one end to the other
	Rate  int64         // bytes per second of all connections together; 0 means no bound
}

// Kind is what happens to a connection.
type Kind string

// The kinds of breaks.
const (
	Cut      Kind = "cut"      // both sides see a reset
	Truncate Kind = "truncate" // both sides see an orderly end
	Drop     Kind = "drop"     // nothing more arrives in this direction, and nobody is told
	Flip     Kind = "flip"     // one bit of the byte is changed, and all goes on
)

// Direction is the way that a byte takes.
type Direction string

// The directions.
const (
	ToClient Direction = "to the client"
	ToServer Direction = "to the server"
)

// Break is one thing that goes wrong: the byte behind After bytes in one
// direction meets it.
type Break struct {
	Kind  Kind
	Way   Direction
	After int64
}

// Relay is a running relay.
type Relay struct {
	to   string
	lis  net.Listener
	work sync.WaitGroup

	mu     sync.Mutex
	line   Line
	breaks []Break
	struck int
	open   map[net.Conn]bool
	dialed int
	bytes  map[Direction]int64
	free   map[Direction]time.Time // when the line has sent what it has taken
	closed bool
}

// Start relays a free port of 127.0.0.1 to the address to.
func Start(to string) (*Relay, error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("relay to %s: %w", to, err)
	}
	r := &Relay{to: to, lis: lis, open: map[net.Conn]bool{}, bytes: map[Direction]int64{}, free: map[Direction]time.Time{}}
	r.work.Go(r.accept)
	return r, nil
}

// Addr is host:port for clients.
func (r *Relay) Addr() string { return r.lis.Addr().String() }

// SetLine changes the line for what is sent from now on.
func (r *Relay) SetLine(l Line) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.line = l
}

// Break adds to the queue of what will go wrong.
func (r *Relay) Break(breaks ...Break) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.breaks = append(r.breaks, breaks...)
}

// Mend empties the queue and returns how many breaks have struck so far.
func (r *Relay) Mend() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.breaks = nil
	return r.struck
}

// Bytes is how much has arrived so far in one direction.
func (r *Relay) Bytes(way Direction) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bytes[way]
}

// Connections is how many clients have connected so far.
func (r *Relay) Connections() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dialed
}

// Close ends all connections and waits until nothing of the relay runs.
func (r *Relay) Close() error {
	r.mu.Lock()
	r.closed = true
	for c := range r.open {
		_ = c.Close()
	}
	r.mu.Unlock()
	err := r.lis.Close()
	r.work.Wait()
	return err
}

func (r *Relay) accept() {
	for {
		client, err := r.lis.Accept()
		if err != nil {
			return // closed
		}
		r.work.Go(func() { r.serve(client) })
	}
}

func (r *Relay) serve(client net.Conn) {
	server, err := net.Dial("tcp", r.to)
	if err != nil {
		reset(client)
		return
	}
	if !r.admit(client, server) {
		return
	}
	defer r.dismiss(client, server)
	var ways sync.WaitGroup
	ways.Go(func() { r.carry(ToServer, server, client) })
	ways.Go(func() { r.carry(ToClient, client, server) })
	ways.Wait()
}

// admit remembers a pair of connections, or ends it when the relay is closed.
func (r *Relay) admit(both ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dialed++
	for _, c := range both {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetWriteBuffer(64 << 10) // what lies in it when a line is cut is lost
		}
		if r.closed {
			_ = c.Close()
		}
		r.open[c] = true
	}
	return !r.closed
}

func (r *Relay) dismiss(both ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range both {
		_ = c.Close()
		delete(r.open, c)
	}
}

// parcel is a piece of a connection on its way.
type parcel struct {
	data []byte
	due  time.Time
	then Kind // what happens behind it, if anything
}

// underway bounds how many pieces of one connection are on the line; more is
// back-pressure for the sender.
const underway = 256

// carry moves one direction of one connection until its end.
func (r *Relay) carry(way Direction, dst, src net.Conn) {
	line := make(chan parcel, underway)
	var arrival sync.WaitGroup
	arrival.Go(func() { r.deliver(way, line, dst, src) })
	defer arrival.Wait()
	defer close(line)
	for {
		buf := make([]byte, 16<<10)
		n, err := src.Read(buf)
		if n > 0 {
			p := r.send(way, buf[:n])
			line <- p
			if p.then == Drop { // whatever else comes is lost
				_, _ = io.Copy(io.Discard, src)
				return
			}
			if p.then != "" {
				return
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				reset(dst)
			}
			return
		}
	}
}

// send puts a piece on the line: when it arrives, and how much of it.
func (r *Relay) send(way Direction, data []byte) parcel {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := parcel{data: data}
	for from := int64(0); len(r.breaks) > 0 && r.breaks[0].Way == way && p.then == ""; {
		next := &r.breaks[0]
		at := from + next.After
		if at >= int64(len(data)) {
			next.After -= int64(len(data)) - from
			break
		}
		if next.Kind == Flip {
			data[at] ^= 1
		} else {
			p.data, p.then = data[:at], next.Kind
		}
		r.breaks, r.struck, from = r.breaks[1:], r.struck+1, at+1
	}
	now := time.Now()
	if r.line.Rate > 0 {
		free := r.free[way]
		if free.Before(now) {
			free = now
		}
		now = free.Add(time.Duration(float64(len(p.data)) / float64(r.line.Rate) * float64(time.Second)))
		r.free[way] = now
	}
	p.due = now.Add(r.line.Delay)
	return p
}

// deliver writes what arrives, when it is due.
func (r *Relay) deliver(way Direction, line <-chan parcel, dst, src net.Conn) {
	last := Truncate // which is how a half ends that nothing happens to
	for p := range line {
		time.Sleep(time.Until(p.due))
		n, err := dst.Write(p.data)
		r.mu.Lock()
		r.bytes[way] += int64(n)
		r.mu.Unlock()
		if err != nil {
			reset(src)
		}
		if p.then != "" {
			last = p.then
		}
	}
	switch tcp, ok := dst.(*net.TCPConn); {
	case last == Cut:
		reset(dst)
		reset(src)
	case last == Truncate && ok:
		_ = tcp.CloseWrite()
	}
}

// reset ends a connection so that the other side learns of it as an error.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

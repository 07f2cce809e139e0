package relay_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"spillway.dev/spillway/e2e/relay"
)

// noise is n bytes that no cut or flip leaves as they are.
func noise(n int) []byte {
	p := make([]byte, n)
	src := rand.NewChaCha8([32]byte{1})
	_, _ = src.Read(p) // never fails
	return p
}

// server sends body to whoever connects and then hears what the client says.
func server(t testing.TB, body []byte) (addr string, heard <-chan []byte) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	said := make(chan []byte, 16)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = c.Write(body) // a break may end it
				if tcp, ok := c.(*net.TCPConn); ok {
					_ = tcp.CloseWrite()
				}
				got, _ := io.ReadAll(c) // up to a break
				said <- got
			}()
		}
	}()
	return l.Addr().String(), said
}

func start(t testing.TB, to string) *relay.Relay {
	t.Helper()
	r, err := relay.Start(to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func dial(t testing.TB, r *relay.Relay) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", r.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestALineIsSlowAndLosesNothing(t *testing.T) {
	body := noise(1 << 20)
	addr, heard := server(t, body)
	r := start(t, addr)
	const delay = 30 * time.Millisecond
	r.SetLine(relay.Line{Delay: delay, Rate: 10 << 20})
	began := time.Now()
	c := dial(t, r)
	if _, err := c.Write(body[:1000]); err != nil {
		t.Fatal(err)
	}
	_ = c.(*net.TCPConn).CloseWrite()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, body) {
		t.Fatalf("%d bytes of %d, %v", len(got), len(body), err)
	}
	if took := time.Since(began); took < 100*time.Millisecond+delay {
		t.Errorf("1 MiB at 10 MiB/s and %v came in %v", delay, took)
	}
	if got := <-heard; !bytes.Equal(got, body[:1000]) {
		t.Errorf("the server heard %d bytes, want 1000", len(got))
	}
	if n := r.Bytes(relay.ToClient); n != int64(len(body)) {
		t.Errorf("it says %d bytes", n)
	}
}

// Each break strikes at its byte, once, and the connection behind it is good.
func TestBreaks(t *testing.T) {
	body := noise(200_000)
	addr, _ := server(t, body)
	r := start(t, addr)
	rapid.Check(t, func(t *rapid.T) {
		at := rapid.IntRange(0, len(body)-1).Draw(t, "at")
		kind := rapid.SampledFrom([]relay.Kind{relay.Cut, relay.Truncate, relay.Drop, relay.Flip}).Draw(t, "kind")
		before := r.Mend()
		r.Break(relay.Break{Kind: kind, Way: relay.ToClient, After: int64(at)})
		c, err := net.Dial("tcp", r.Addr())
		if kind == relay.Cut && errors.Is(err, syscall.ECONNRESET) {
			return // it was quicker than Dial
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var got []byte
		if kind == relay.Drop {
			got = make([]byte, at)
			if _, err = io.ReadFull(c, got); err != nil {
				t.Fatalf("before the drop: %v", err)
			}
			_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("behind the drop: %d bytes, %v", n, err)
			}
		} else {
			got, err = io.ReadAll(c)
		}
		hurt := bytes.Clone(body)
		hurt[at] ^= 1
		switch kind {
		case relay.Cut:
			if !errors.Is(err, syscall.ECONNRESET) || len(got) > at || !bytes.HasPrefix(body, got) {
				t.Fatalf("a cut at %d gave %d bytes, %v", at, len(got), err)
			}
		case relay.Truncate, relay.Drop:
			if err != nil || !bytes.Equal(got, body[:at]) {
				t.Fatalf("%s at %d gave %d bytes, %v", kind, at, len(got), err)
			}
		case relay.Flip:
			if err != nil || !bytes.Equal(got, hurt) {
				t.Fatalf("a flip at %d gave %d bytes, %v", at, len(got), err)
			}
		}
		if n := r.Mend() - before; n != 1 {
			t.Fatalf("%d breaks have struck, want one", n)
		}
	})
	if got, err := io.ReadAll(dial(t, r)); err != nil || !bytes.Equal(got, body) {
		t.Errorf("behind all breaks: %d bytes, %v", len(got), err)
	}
}

func TestBreaksOnTheWayToTheServer(t *testing.T) {
	addr, heard := server(t, nil)
	r := start(t, addr)
	body := noise(100_000)
	// The second counts from where the first has struck.
	r.Break(relay.Break{Kind: relay.Flip, Way: relay.ToServer, After: 10}, relay.Break{Kind: relay.Truncate, Way: relay.ToServer, After: 50_000})
	c := dial(t, r)
	_, _ = c.Write(body) // the end may come before its end
	want := bytes.Clone(body[:50_011])
	want[10] ^= 1
	if got := <-heard; !bytes.Equal(got, want) {
		t.Errorf("the server heard %d bytes, want %d", len(got), len(want))
	}
}

func TestCloseEndsEverything(t *testing.T) {
	addr, _ := server(t, noise(10))
	r := start(t, addr)
	c := dial(t, r)
	if _, err := io.ReadFull(c, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(make([]byte, 1)); err == nil {
		if _, err = c.Read(make([]byte, 1)); err == nil {
			t.Error("the connection lives on")
		}
	}
	if _, err := net.Dial("tcp", r.Addr()); err == nil {
		t.Error("it still listens")
	}
}

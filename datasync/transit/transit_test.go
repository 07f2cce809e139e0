package transit_test

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"spillway.dev/spillway/datasync/seal"
	"spillway.dev/spillway/datasync/stager"
	"spillway.dev/spillway/datasync/transit"
	"spillway.dev/spillway/e2e/keyservice"
)

// place is a server and a client of it.
type place struct {
	server *keyservice.Server
	client *transit.Client
	token  string // file
}

func newPlace(t *testing.T, change ...func(*transit.Config, *keyservice.Server)) *place {
	t.Helper()
	p := &place{server: keyservice.Start("token-1"), token: filepath.Join(t.TempDir(), "token")}
	t.Cleanup(p.server.Close)
	cfg := transit.Config{
		Address: p.server.URL(), CA: p.server.CA(), TokenFile: p.token, Timeout: 5 * time.Second, Pause: time.Millisecond,
	}
	for _, c := range change {
		c(&cfg, p.server)
	}
	p.writeToken(t, "token-1\n")
	var err error
	if p.client, err = transit.New(cfg); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *place) writeToken(t *testing.T, token string) {
	t.Helper()
	if err := os.WriteFile(p.token, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (p *place) custody(t *testing.T) *stager.Custody {
	t.Helper()
	c, err := stager.NewCustody(stager.CustodyConfig{Dir: t.TempDir() + "/keys", KEKs: p.client, Random: rand.Reader, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// until polls a condition; it fails the test when it does not come true.
func until(t *testing.T, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not come true in 20 s")
		}
	}
}

func TestTransitKeepsThePromises(t *testing.T) {
	for name, change := range map[string]func(*transit.Config, *keyservice.Server){
		"as it comes": func(*transit.Config, *keyservice.Server) {},
		"in a namespace, on a mount of its own": func(c *transit.Config, s *keyservice.Server) {
			c.Mount, s.Mount, c.Namespace, s.Namespace = "/keys/transit/", "keys/transit", "ops/gpu", "ops/gpu"
		},
		"with a token that may create": func(_ *transit.Config, s *keyservice.Server) { s.Misbehave(keyservice.Faults{MayCreate: true}) },
	} {
		t.Run(name, func(t *testing.T) {
			keyservice.Run(t, keyservice.Suite{New: func(t *testing.T) stager.KEKs { return newPlace(t, change).client }, Proves: true})
		})
	}
}

// A server that misbehaves: nothing is ever taken for destroyed, and each error
// says what, why, and what to do.
func TestServerThatMisbehaves(t *testing.T) {
	standby := keyservice.Start("token-1")
	t.Cleanup(standby.Close)
	tests := map[string]struct {
		faults keyservice.Faults
		want   string // of a destruction
	}{
		"sealed":                              {keyservice.Faults{Sealed: true}, "503 Vault is sealed: unseal it"},
		"the token lost its rights":           {keyservice.Faults{Denied: true}, "403 permission denied: renew the token"},
		"something on the way answers 404":    {keyservice.Faults{Proxy404: true}, "404"},
		"it says yes and keeps the key":       {keyservice.Faults{KeepDeleted: true}, "says that it is deleted, and still has it"},
		"it deletes so that it can come back": {keyservice.Faults{SoftDelete: true}, "says that it is deleted, and still has it"},
		"busy for longer than we ask":         {keyservice.Faults{Busy: 9}, "429"},
		"it redirects to another authority":   {keyservice.Faults{Standby: standby.URL()}, "certificate"},
		"it redirects off the encrypted way":  {keyservice.Faults{Standby: "http://127.0.0.1:1"}, "not encrypted"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			c := p.custody(t)
			if _, err := c.Create(t.Context(), "b"); err != nil {
				t.Fatal(err)
			}
			p.server.Misbehave(tt.faults)
			d, err := c.Destroy(t.Context(), "b")
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "burst b") {
				t.Errorf("Destroy: %+v, %v; want an error with %q", d, err, tt.want)
			}
			if tt.faults.Proxy404 {
				p.server.Misbehave(keyservice.Faults{})
				if len(p.server.Names()) != 1 {
					t.Errorf("keys: %v", p.server.Names())
				}
			}
			p.server.Misbehave(keyservice.Faults{})
			if d, err := c.Destroy(t.Context(), "b"); err != nil || !d.Proven() {
				t.Errorf("Destroy when all is well again: %+v, %v", d, err)
			}
		})
	}
}

// What a client may repeat it repeats: a busy server, one that is not level
// yet, and every answer that gets lost after it was acted on.
func TestRepeats(t *testing.T) {
	for name, faults := range map[string]keyservice.Faults{
		"busy twice":                  {Busy: 2},
		"not level with the leader":   {NotLevel: 2},
		"any answer is lost":          {Lose: 2},
		"the answer to the deletion":  {Lose: 1, LoseOnly: http.MethodDelete},
		"the answers to the deletion": {Lose: 3, LoseOnly: http.MethodDelete},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			c := p.custody(t)
			p.server.Misbehave(faults)
			if _, err := c.Create(t.Context(), "b"); err != nil {
				t.Fatal(err)
			}
			p.server.Misbehave(faults)
			d, err := c.Destroy(t.Context(), "b")
			if err != nil || !d.Proven() || d.AuditRef == "" {
				t.Errorf("%+v, %v", d, err)
			}
			if names := p.server.Names(); len(names) != 1 {
				t.Errorf("keys left beside the one that lives on: %v", names)
			}
		})
	}
}

func TestSilentServer(t *testing.T) {
	p := newPlace(t)
	p.server.Misbehave(keyservice.Faults{Silent: true})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.client.Make(ctx, "a") }()
	until(t, func() bool { return len(p.server.Asked()) > 0 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Make: %v", err)
	}
}

// A standby sends its clients to the active server, which gets the request
// whole.
func TestStandby(t *testing.T) {
	p := newPlace(t)
	standby := newPlace(t, func(c *transit.Config, s *keyservice.Server) { // it answers under the same authority
		s.Misbehave(keyservice.Faults{Standby: p.server.URL()})
		c.CA = p.server.CA()
		c.CA.AddCert(s.Certificate())
	})
	key, err := standby.custody(t).Create(t.Context(), "b")
	if err != nil || key.IsZero() || len(p.server.Names()) != 1 || len(standby.server.Names()) != 0 {
		t.Errorf("Create through a standby: %v, keys %v and %v", err, p.server.Names(), standby.server.Names())
	}
}

// The token is what the file holds at that time.
func TestTokenIsReadAnew(t *testing.T) {
	p := newPlace(t)
	if err := p.client.Make(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	p.server.Rotate("token-2")
	if err := p.client.Make(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "renew the token") || strings.Contains(err.Error(), "token-1") {
		t.Errorf("with the old token: %v", err)
	}
	p.writeToken(t, "  token-2 ")
	if err := p.client.Make(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	p.writeToken(t, "\n")
	if err := p.client.Make(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "is empty") {
		t.Errorf("without a token: %v", err)
	}
}

func TestTokenIsRenewed(t *testing.T) {
	p := newPlace(t)
	if ttl, err := p.client.Renew(t.Context()); err != nil || ttl != time.Hour {
		t.Errorf("%v, %v", ttl, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.client.KeepToken(ctx, slog.New(slog.DiscardHandler))
	}()
	until(t, func() bool { return slices.Contains(p.server.Asked()[2:], "GET auth/token/lookup-self") })
	cancel()
	<-done
}

// A key that could have left the engine is destroyed, and not proven to be.
func TestExposedKey(t *testing.T) {
	p := newPlace(t)
	c := p.custody(t)
	if _, err := c.Create(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	p.server.Expose(p.server.Names()[0])
	d, err := c.Destroy(t.Context(), "b")
	doubts := strings.Join(d.Doubts, "; ")
	if err != nil || d.Proven() || !strings.Contains(doubts, "exported") || !strings.Contains(doubts, "backup of the key was taken") {
		t.Errorf("%+v, %v", d, err)
	}
}

// A wrong mount or namespace is not an empty one: a 404 with words speaks of
// the path, and the remedy names it.
func TestWrongMountIsNotDestruction(t *testing.T) {
	p := newPlace(t, func(c *transit.Config, _ *keyservice.Server) { c.Mount = "elsewhere" })
	_, err := p.client.Look(t.Context(), "a")
	if err == nil || errors.Is(err, stager.ErrNoKEK) || !strings.Contains(err.Error(), "check mount and namespace") {
		t.Errorf("Look: %v", err)
	}
	if _, err := p.client.Unwrap(t.Context(), "a", []byte("vault:v1:AAAA")); err == nil || errors.Is(err, stager.ErrNoKEK) || errors.Is(err, seal.ErrUnwrap) {
		t.Errorf("Unwrap: %v", err)
	}
}

// A copy of the wrapped key that went astray is worthless after a rotation.
func TestRotation(t *testing.T) {
	p := newPlace(t)
	dir := t.TempDir() + "/keys"
	c, err := stager.NewCustody(stager.CustodyConfig{Dir: dir, KEKs: p.client, Random: rand.Reader, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	key, err := c.Create(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.wrapped"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	astray, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Rotate(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	if again, err := c.Get(t.Context(), "b"); err != nil || again != key {
		t.Errorf("after the rotation: the same %v, %v", again == key, err)
	}
	if err := os.WriteFile(files[0], astray, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(t.Context(), "b"); !errors.Is(err, seal.ErrUnwrap) {
		t.Errorf("the copy that went astray: %v", err)
	}
}

func TestNewRefuses(t *testing.T) {
	for want, cfg := range map[string]transit.Config{
		"https URL":  {Address: "http://vault:8200", TokenFile: "f"},
		"token file": {Address: "https://vault:8200"},
	} {
		if _, err := transit.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

package nodeagent

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"spillway.dev/spillway/datasync/seal"
	"spillway.dev/spillway/nodeagent/wipe"
)

// machineOf is a machine in memory: stopping ends its pods after some asks.
type machineOf struct {
	mu       sync.Mutex
	pods     []Pod
	devices  []Device
	stubborn int // how many requests to stop are ignored
	broken   error
	stops    []time.Duration // graces
}

func (m *machineOf) Pods(context.Context) ([]Pod, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.pods), m.broken
}

func (m *machineOf) Devices(context.Context) ([]Device, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.devices), m.broken
}

func (m *machineOf) StopPods(_ context.Context, grace time.Duration, _ string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stops = append(m.stops, grace)
	if m.stubborn > 0 {
		m.stubborn--
		return m.broken
	}
	for i := range m.pods {
		m.pods[i].Finished = time.Now()
	}
	return m.broken
}

func (m *machineOf) PowerOff(context.Context, string) error { return m.broken }

// wiperOf is a node that has a key, a canary and some sealed files.
func wiperOf(t *testing.T) *wiper {
	t.Helper()
	v, err := newVault()
	if err != nil {
		t.Fatal(err)
	}
	area := filepath.Join(t.TempDir(), "sealed")
	w := &wiper{
		node: "node-1", burst: "burst-1", area: area, machine: &machineOf{}, vault: v,
		canary: &canary{path: filepath.Join(area, "canary"), burst: "burst-1"},
		wall:   time.Now, stopGrace: 0, look: time.Second,
	}
	key := seal.DataKey{1, 2, 3}
	if err := w.canary.make(key); err != nil {
		t.Fatal(err)
	}
	v.put(key[:])
	for _, name := range []string{"cache/one", "cache/two"} {
		path := filepath.Join(area, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("sealed bytes"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func TestWiper(t *testing.T) {
	tests := map[string]struct {
		spoil func(*wiper)
		level wipe.Level
		want  string // in the reasons
	}{
		"all goes well":             {func(*wiper) {}, wipe.Complete, ""},
		"pods that stop when asked": {func(w *wiper) { w.machine = &machineOf{pods: []Pod{{UID: "a"}}} }, wipe.Complete, ""},
		"pods that stop at the third time": {
			func(w *wiper) {
				w.machine, w.stopGrace = &machineOf{pods: []Pod{{UID: "a"}}, stubborn: 2}, 10*time.Second
			}, wipe.Complete, "",
		},
		"a pod that never stops": {
			func(w *wiper) { w.machine = &machineOf{pods: []Pod{{UID: "a"}}, stubborn: 1000} }, wipe.Partial, `"pods stopped" failed: 1 containers still run`,
		},
		"a machine that does not answer": {
			func(w *wiper) { w.machine = &machineOf{broken: errors.New("no socket")} }, wipe.Partial, "no socket",
		},
		"the front does not end": {
			func(w *wiper) { w.stopFront = func(context.Context) error { return errors.New("still answers") } }, wipe.Partial, "still answers",
		},
		"the front keeps its key": {
			func(w *wiper) { w.lockFront = func() error { return errors.New("busy") } }, wipe.NotWiped, "busy",
		},
		"the key is put back": {
			func(w *wiper) { w.lockFront = func() error { w.vault.put([]byte{1, 2, 3}); return nil } }, wipe.NotWiped, "a key is still held",
		},
		"the memory still has the key": {
			func(w *wiper) {
				w.lockFront = func() error { copy(w.vault.page, []byte{1, 2, 3}); return nil }
			}, wipe.NotWiped, "the canary still opens",
		},
		"somebody removed the canary": {
			func(w *wiper) { _ = os.Remove(w.canary.path) }, wipe.NotWiped, "read the canary",
		},
		"somebody changed the canary": {
			func(w *wiper) { _ = os.WriteFile(w.canary.path, []byte("other"), 0o600) }, wipe.NotWiped, "not the file that was made",
		},
		"another canary was sealed": {
			func(w *wiper) { w.canary.burst = "burst-2" }, wipe.NotWiped, "did not open with the key",
		},
		"an earlier process was killed with the key": {
			func(w *wiper) { w.earlier = true }, wipe.Partial, "earlier agent process",
		},
		"an earlier process had the key, this one never": {
			func(w *wiper) {
				w.earlier = true
				v, err := newVault()
				if err != nil {
					panic(err)
				}
				w.vault = v
			}, wipe.NotWiped, "no key was held",
		},
		"the area can't be read": {
			func(w *wiper) { w.area = w.canary.path }, wipe.KeyDestructionOnly, "not a directory",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := wiperOf(t)
			tt.spoil(w)
			var p wipe.Proof
			synctest.Test(t, func(t *testing.T) { p = w.run(t.Context(), "order-1", "ordered") })
			if got := p.Level(); got != tt.level {
				t.Errorf("level %q, want %q: %q", got, tt.level, p.Reasons())
			}
			if all := strings.Join(p.Reasons(), "; "); !strings.Contains(all, tt.want) {
				t.Errorf("reasons %q, want one with %q", all, tt.want)
			}
			if held, _ := w.vault.has(); held && name != "the key is put back" {
				t.Error("the key is still held")
			}
			if len(p.NotCovered) == 0 {
				t.Error("the proof claims to cover everything")
			}
			var order []string
			for _, s := range p.Steps {
				if slices.Contains(wipe.RequiredSteps(), s.Name) {
					order = append(order, s.Name)
				}
			}
			if !slices.Equal(order, wipe.RequiredSteps()) {
				t.Errorf("steps in the order %q", order)
			}
		})
	}
}

// A wipe that is out of time still destroys the key and removes the names, and
// says what it did not do.
func TestWiperWithoutTime(t *testing.T) {
	w := wiperOf(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := w.run(ctx, "", "lease")
	if p.Level() != wipe.Partial || !p.Areas[0].Empty || p.Areas[0].Overwritten != 0 || p.FilesRemoved != 3 {
		t.Errorf("level %q, area %+v", p.Level(), p.Areas[0])
	}
}

// The canary and the cache's files are ciphertext, and opening needs the key.
func TestCanary(t *testing.T) {
	w := wiperOf(t)
	sealed, err := os.ReadFile(w.canary.path)
	if err != nil || strings.Contains(string(sealed), string(w.canary.plain)) {
		t.Errorf("the canary lies there in clear: %v", err)
	}
	key, err := w.vault.key()
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := w.canary.opens(key); !ok || err != nil {
		t.Errorf("with the key: %t, %v", ok, err)
	}
	if ok, err := w.canary.opens(seal.DataKey{}); ok || err != nil {
		t.Errorf("without the key: %t, %v", ok, err)
	}
}

func TestVault(t *testing.T) {
	v, err := newVault()
	if err != nil {
		t.Fatal(err)
	}
	given := []byte(strings.Repeat("k", 32))
	v.put(given)
	if slices.ContainsFunc(given, func(b byte) bool { return b != 0 }) {
		t.Error("the caller's copy was not overwritten")
	}
	if k, err := v.key(); err != nil || k.IsZero() {
		t.Errorf("key: %v", err)
	}
	if err := v.destroy(); err != nil {
		t.Fatal(err)
	}
	if k, err := v.key(); !errors.Is(err, errNoKey) || !k.IsZero() {
		t.Errorf("after destroy: %v, zero %t", err, k.IsZero())
	}
	if held, received := v.has(); held || !received {
		t.Errorf("held %t, received %t", held, received)
	}
	if err := v.close(); err != nil {
		t.Error(err)
	}
}

// A front that is told to stop is gone, also for a client in the middle.
func TestListener(t *testing.T) {
	l, err := listen("127.0.0.1:0", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", l.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // the other end is gone
	if err := l.stop(t.Context()); err != nil {
		t.Errorf("stop: %v", err)
	}
	if _, err := listen("256.0.0.1:1", nil); err == nil || !strings.Contains(err.Error(), "--front") {
		t.Errorf("listen at an impossible address: %v", err)
	}
}

// So is one that had opened its socket and not begun to serve.
func TestListenerStoppedAtOnce(t *testing.T) {
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{server: &http.Server{ReadHeaderTimeout: time.Second}, socket: socket, addr: socket.Addr().String()}
	if err := l.stop(t.Context()); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// Filling the cache gives way to a wipe and never comes back.
func TestStagingGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := staging{forbidden: make(chan struct{})}
		done := make(chan error, 1)
		go func() {
			done <- s.run(t.Context(), func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			})
		}()
		synctest.Wait()
		if err := s.forbid(t.Context()); err != nil {
			t.Errorf("forbid: %v", err)
		}
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("what ran ended with %v", err)
		}
		err := s.run(t.Context(), func(context.Context) error { t.Error("filled again"); return nil })
		if !errors.Is(err, errForbidden) {
			t.Errorf("run after forbid: %v", err)
		}
	})
}

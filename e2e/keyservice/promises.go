package keyservice

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"testing"
	"time"

	"spillway.dev/spillway/datasync/seal"
	"spillway.dev/spillway/datasync/stager"
)

// Suite is one key service to hold to its promises.
type Suite struct {
	// New returns a service without keys. It is called once a test.
	New func(t *testing.T) stager.KEKs
	// Proves says that the service can prove that a key is gone.
	Proves bool
}

// Run runs every promise as a test; a failure names the promise.
func Run(t *testing.T, s Suite) {
	for name, promise := range map[string]func(*testing.T, stager.KEKs, bool){
		"a key that is there is not made again":        keepsItsKeys,
		"a key opens what it wrapped and nothing else": opensItsOwn,
		"a name without a key is told by ErrNoKEK":     knowsWhatIsNot,
		"many makers at a time make one key":           oneKeyForMany,
		"one key is destroyed and the others live":     destroysOne,
		"Look says how far a destruction is proven":    saysHowFar,
		"the custody's evidence follows":               givesEvidence,
		"a new version retires the old ones":           retires,
	} {
		t.Run(name, func(t *testing.T) { promise(t, s.New(t), s.Proves) })
	}
}

// fresh draws a data key.
func fresh(t *testing.T) seal.DataKey {
	t.Helper()
	key, err := seal.NewDataKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// wrapped makes the key-encryption key and wraps a data key under it.
func wrapped(t *testing.T, k stager.KEKs, name string) (seal.DataKey, []byte) {
	t.Helper()
	key := fresh(t)
	if err := k.Make(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	w, err := k.Wrap(t.Context(), name, key)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(w, key[:8]) {
		t.Fatal("the wrapped key shows the key")
	}
	return key, w
}

func opens(t *testing.T, k stager.KEKs, name string, w []byte, want seal.DataKey) {
	t.Helper()
	if got, err := k.Unwrap(t.Context(), name, w); err != nil || got != want {
		t.Errorf("unwrap with %s: the same %v, %v", name, got == want, err)
	}
}

func refuses(t *testing.T, k stager.KEKs, name string, w []byte, want error) {
	t.Helper()
	if _, err := k.Unwrap(t.Context(), name, w); !errors.Is(err, want) {
		t.Errorf("unwrap with %s: %v, want %v", name, err, want)
	}
}

func keepsItsKeys(t *testing.T, k stager.KEKs, _ bool) {
	key, w := wrapped(t, k, "a")
	if err := k.Make(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	opens(t, k, "a", w, key)
}

func opensItsOwn(t *testing.T, k stager.KEKs, _ bool) {
	key, w := wrapped(t, k, "a")
	_, other := wrapped(t, k, "b")
	opens(t, k, "a", w, key)
	refuses(t, k, "a", other, seal.ErrUnwrap)
	refuses(t, k, "b", w, seal.ErrUnwrap)
	refuses(t, k, "a", w[:len(w)-4], seal.ErrUnwrap)
	refuses(t, k, "a", []byte("x"), seal.ErrUnwrap)
	if again, err := k.Wrap(t.Context(), "a", key); err != nil || bytes.Equal(again, w) {
		t.Errorf("wrapped twice: the same %v, %v", bytes.Equal(again, w), err)
	}
}

func knowsWhatIsNot(t *testing.T, k stager.KEKs, _ bool) {
	_, w := wrapped(t, k, "a")
	if _, err := k.Look(t.Context(), "none"); !errors.Is(err, stager.ErrNoKEK) {
		t.Errorf("look: %v", err)
	}
	if _, err := k.Wrap(t.Context(), "none", fresh(t)); !errors.Is(err, stager.ErrNoKEK) {
		t.Errorf("wrap: %v", err)
	}
	refuses(t, k, "none", w, stager.ErrNoKEK)
	if _, err := k.Destroy(t.Context(), "none"); err != nil {
		t.Errorf("destroy: %v", err)
	}
	if _, err := k.Look(t.Context(), "none"); !errors.Is(err, stager.ErrNoKEK) {
		t.Errorf("asking for a key made one: %v", err)
	}
}

func oneKeyForMany(t *testing.T, k stager.KEKs, _ bool) {
	var all sync.WaitGroup
	keys, wraps, errs := make([]seal.DataKey, 8), make([][]byte, 8), make([]error, 8)
	for i := range keys {
		keys[i] = fresh(t)
		all.Go(func() {
			if errs[i] = k.Make(t.Context(), "a"); errs[i] == nil {
				wraps[i], errs[i] = k.Wrap(t.Context(), "a", keys[i])
			}
		})
	}
	all.Wait()
	for i := range keys {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		opens(t, k, "a", wraps[i], keys[i])
	}
}

// cases: F11 (a node that is gone: its data ends with the key)
func destroysOne(t *testing.T, k stager.KEKs, _ bool) {
	_, w := wrapped(t, k, "a")
	key, other := wrapped(t, k, "b")
	for range 2 {
		if _, err := k.Destroy(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		refuses(t, k, "a", w, stager.ErrNoKEK)
		opens(t, k, "b", other, key)
	}
	if _, err := k.Look(t.Context(), "a"); !errors.Is(err, stager.ErrNoKEK) {
		t.Errorf("look: %v", err)
	}
	if err := k.Make(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	refuses(t, k, "a", w, seal.ErrUnwrap) // it is another key
}

func saysHowFar(t *testing.T, k stager.KEKs, proves bool) {
	wrapped(t, k, "a")
	kek, err := k.Look(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if (len(kek.Doubts) == 0) != proves || kek.ID == "" || kek.Version == "" || kek.Method == "" || kek.Beyond == "" {
		t.Errorf("%+v", kek)
	}
}

func givesEvidence(t *testing.T, k stager.KEKs, proves bool) {
	c, err := stager.NewCustody(stager.CustodyConfig{Dir: t.TempDir() + "/keys", KEKs: k, Random: rand.Reader, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	for _, burst := range []string{"ends", "lives"} {
		if _, err := c.Create(t.Context(), burst); err != nil {
			t.Fatal(err)
		}
	}
	d, err := c.Destroy(t.Context(), "ends")
	if err != nil {
		t.Fatal(err)
	}
	n := d.Canary
	if d.Proven() != proves || !n.Opened || !n.Refused || !n.LiveOpened || n.SHA256 == "" || n.At.IsZero() {
		t.Errorf("proven %v, want %v: %+v", d.Proven(), proves, d)
	}
	if _, err := c.Get(t.Context(), "lives"); err != nil {
		t.Errorf("the burst that lives: %v", err)
	}
	if _, err := c.Get(t.Context(), "ends"); !errors.Is(err, stager.ErrKeyDestroyed) {
		t.Errorf("the burst that ended: %v", err)
	}
}

func retires(t *testing.T, k stager.KEKs, _ bool) {
	v, ok := k.(stager.VersionedKEKs)
	if !ok {
		return // it promises no versions
	}
	act := func(f func(context.Context, string) error) {
		t.Helper()
		if err := f(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	key, old := wrapped(t, k, "a")
	act(v.Rotate)
	opens(t, k, "a", old, key)
	_, fresh := wrapped(t, k, "a")
	act(v.Retire)
	refuses(t, k, "a", old, seal.ErrUnwrap)
	if _, err := v.Unwrap(t.Context(), "a", fresh); err != nil {
		t.Error(err)
	}
}

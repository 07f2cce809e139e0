package stager_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spillway.dev/spillway/datasync/seal"
	"spillway.dev/spillway/datasync/stager"
	"spillway.dev/spillway/e2e/keyservice"
)

func TestFileKeysKeepThePromises(t *testing.T) {
	keyservice.Run(t, keyservice.Suite{New: func(t *testing.T) stager.KEKs {
		k, err := stager.FileKEKs(t.TempDir()+"/keys", rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}})
}

// service is a key service in memory that can prove a destruction, and a
// script of what goes wrong: each call is announced to hook first.
type service struct {
	mu    sync.Mutex
	keys  map[string]seal.KEK
	hook  func(call, name string) error
	after func(call, name string) error
	keeps bool // Destroy says yes and does nothing
	doubt string
}

func newService() *service {
	return &service{keys: map[string]seal.KEK{}}
}

func (s *service) do(call, name string, act func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hook != nil {
		if err := s.hook(call, name); err != nil {
			return err
		}
	}
	if err := act(); err != nil {
		return err
	}
	if s.after != nil {
		return s.after(call, name)
	}
	return nil
}

func (s *service) find(name string) (seal.KEK, error) {
	k, ok := s.keys[name]
	if !ok {
		return k, stager.ErrNoKEK
	}
	return k, nil
}

func (s *service) Make(_ context.Context, name string) error {
	return s.do("make", name, func() error {
		if _, ok := s.keys[name]; ok {
			return nil
		}
		k, err := seal.NewKEK(rand.Reader)
		s.keys[name] = k
		return err
	})
}

func (s *service) Look(_ context.Context, name string) (stager.KEK, error) {
	k := stager.KEK{ID: "memory/" + name, Version: "1", Method: "forgotten", Beyond: "nothing"}
	if s.doubt != "" {
		k.Doubts = []string{s.doubt}
	}
	return k, s.do("look", name, func() error { _, err := s.find(name); return err })
}

func (s *service) Wrap(_ context.Context, name string, key seal.DataKey) (out []byte, err error) {
	err = s.do("wrap", name, func() error {
		k, err := s.find(name)
		if err != nil {
			return err
		}
		out, err = seal.Wrap(k, key, name, rand.Reader)
		return err
	})
	return out, err
}

func (s *service) Unwrap(_ context.Context, name string, w []byte) (key seal.DataKey, err error) {
	err = s.do("unwrap", name, func() error {
		k, err := s.find(name)
		if err != nil {
			return err
		}
		key, err = seal.Unwrap(k, w, name)
		return err
	})
	return key, err
}

func (s *service) Destroy(_ context.Context, name string) (string, error) {
	return "audit-1", s.do("destroy", name, func() error {
		if !s.keeps {
			delete(s.keys, name)
		}
		return nil
	})
}

func custodyOver(t *testing.T, dir string, k stager.KEKs) *stager.Custody {
	t.Helper()
	c, err := stager.NewCustody(stager.CustodyConfig{Dir: dir, KEKs: k, Random: rand.Reader, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestServiceInMemoryKeepsThePromises(t *testing.T) {
	keyservice.Run(t, keyservice.Suite{New: func(*testing.T) stager.KEKs { return newService() }, Proves: true})
}

// The process may die, or an answer be lost, at every call of a life with a
// key: the next process goes on, a key that was handed out stays the same, and
// the destruction ends as proven with one time.
func TestCustodyAfterACrashAtEveryCall(t *testing.T) {
	crash := errors.New("crash")
	for _, when := range []string{"before", "after"} {
		for n := 0; ; n++ {
			dir, s, calls := t.TempDir()+"/keys", newService(), 0
			at := func(string, string) error {
				calls++
				if calls == n+1 {
					return crash
				}
				return nil
			}
			if when == "before" {
				s.hook = at
			} else {
				s.after = at
			}
			key, err := custodyOver(t, dir, s).Create(t.Context(), "b")
			if err != nil && !errors.Is(err, crash) {
				t.Fatalf("%s call %d: %v", when, n, err)
			}
			again, err2 := custodyOver(t, dir, s).Create(t.Context(), "b")
			if errors.Is(err2, crash) {
				again, err2 = custodyOver(t, dir, s).Create(t.Context(), "b")
			}
			if err2 != nil || err == nil && again != key {
				t.Fatalf("%s call %d: created again: the same %v, %v", when, n, again == key, err2)
			}
			d, err := custodyOver(t, dir, s).Destroy(t.Context(), "b")
			if errors.Is(err, crash) {
				if _, err := custodyOver(t, dir, s).Get(t.Context(), "b"); !errors.Is(err, stager.ErrKeyDestroyed) {
					t.Errorf("%s call %d: got while it is destroyed: %v", when, n, err)
				}
				d, err = custodyOver(t, dir, s).Destroy(t.Context(), "b")
			}
			if err != nil || !d.Proven() {
				t.Fatalf("%s call %d: %+v, %v", when, n, d, err)
			}
			if repeat, err := custodyOver(t, dir, s).Destroy(t.Context(), "b"); err != nil || cmp.Diff(d, repeat) != "" {
				t.Fatalf("%s call %d: repeated: %v, %v", when, n, cmp.Diff(d, repeat), err)
			}
			if calls <= n {
				break // nothing was left to break
			}
		}
	}
}

// What keeps a destruction from being proven, and what makes it an error that
// is tried again.
func TestCustodyProvesNothingThatItDidNotSee(t *testing.T) {
	down := errors.New("sealed")
	tests := map[string]struct {
		spoil func(s *service)
		doubt string // in the evidence
		err   string // or of Destroy
	}{
		"a service that cannot prove it": {spoil: func(s *service) { s.doubt = "copies may exist" }, doubt: "copies may exist"},
		"somebody deleted the key before": {
			spoil: func(s *service) { delete(s.keys, only(s)) }, doubt: "the key was gone before it was destroyed",
		},
		"the canary does not open before": {
			spoil: func(s *service) {
				k, err := seal.NewKEK(rand.Reader)
				if err != nil {
					panic(err)
				}
				s.keys[only(s)] = k
			},
			doubt: "no canary was seen to open before",
		},
		"yes is said and nothing done": {spoil: func(s *service) { s.keeps = true }, err: "is there all the same"},
		"the service is down":          {spoil: func(s *service) { s.hook = func(string, string) error { return down } }, err: "sealed"},
		"it goes silent after the destruction": {
			spoil: func(s *service) {
				gone := false
				s.hook = func(call, _ string) error {
					if gone = gone || call == "destroy"; gone && call == "unwrap" {
						return down
					}
					return nil
				}
			},
			err: "the canary was not refused as destroyed",
		},
		"it forgets everything": { // a wrong address, an empty server: the canary is refused, and so is all else
			spoil: func(s *service) {
				s.after = func(call, _ string) error {
					if call == "destroy" {
						clear(s.keys)
					}
					return nil
				}
			},
			err: "the refusal shows nothing",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newService()
			c := custodyOver(t, t.TempDir()+"/keys", s)
			if _, err := c.Create(t.Context(), "b"); err != nil {
				t.Fatal(err)
			}
			tt.spoil(s)
			d, err := c.Destroy(t.Context(), "b")
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || !strings.Contains(err.Error(), "burst b") {
					t.Errorf("%+v, %v; want an error with %q", d, err, tt.err)
				}
				if _, err := c.Get(t.Context(), "b"); !errors.Is(err, stager.ErrKeyDestroyed) {
					t.Errorf("the key is still handed out: %v", err)
				}
				return
			}
			if err != nil || d.Proven() || !strings.Contains(strings.Join(d.Doubts, "; "), tt.doubt) {
				t.Errorf("%+v, %v; want the doubt %q", d, err, tt.doubt)
			}
		})
	}
}

// only is the one key of a service.
func only(s *service) string {
	return slices.Collect(maps.Keys(s.keys))[0]
}

// A key that the service does not give back is not handed out: what it seals
// could not be opened after a restart.
func TestCustodyHandsOutNoKeyThatDoesNotComeBack(t *testing.T) {
	s := newService()
	s.hook = func(call, name string) error {
		if call == "unwrap" {
			return fmt.Errorf("%w: broken", seal.ErrUnwrap)
		}
		return nil
	}
	c := custodyOver(t, t.TempDir()+"/keys", s)
	if key, err := c.Create(t.Context(), "b"); err == nil || !key.IsZero() {
		t.Errorf("Create: %v", err)
	}
	if _, err := c.Get(t.Context(), "b"); !errors.Is(err, stager.ErrNoKey) {
		t.Errorf("Get: %v", err)
	}
}

// Every act is on record, by whom and why, and a record that was cut or
// changed says so.
func TestKeyActs(t *testing.T) {
	dir, s := t.TempDir()+"/keys", newService()
	if _, err := custodyOver(t, dir, s).Create(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	person, err := stager.NewCustody(stager.CustodyConfig{
		Dir: dir, KEKs: s, Random: rand.Reader, Now: time.Now, By: "p-17", Reason: "ticket 4",
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := person.Destroy(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "acts.jsonl")
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	acts, err := person.Acts()
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, a := range acts {
		said = append(said, strings.Join([]string{a.Act, a.Burst, a.By, a.Reason, a.Outcome}, ","))
	}
	if diff := cmp.Diff([]string{"made,b,controller,,", "destroying,b,p-17,ticket 4,", "destroyed,b,p-17,ticket 4,destroyed"}, said); diff != "" {
		t.Error(diff)
	}
	lines := strings.SplitAfter(string(whole), "\n")
	for name, tt := range map[string]struct {
		text string
		acts int
		want string
	}{
		"a line is missing":               {lines[0] + lines[2], 1, "line 2"},
		"a line was changed":              {strings.Replace(string(whole), "p-17", "p-18", 1), 2, "line 3"},
		"it is no JSON":                   {lines[0] + "{\n", 1, "line 2"},
		"a crash cut the last line short": {lines[0] + lines[1] + lines[2][:9], 2, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			acts, err := person.Acts()
			if len(acts) != tt.acts || (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%d acts, %v", len(acts), err)
			}
		})
	}
	if err := os.WriteFile(file, []byte(lines[0]+lines[1]+lines[2][:9]), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := person.Create(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	if acts, err := person.Acts(); err != nil || len(acts) != 3 || acts[2].Burst != "c" {
		t.Errorf("after a line that was cut: %+v, %v", acts, err)
	}
}

func TestCustodyRotates(t *testing.T) {
	c := custodyOver(t, t.TempDir()+"/keys", newService())
	if _, err := c.Create(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	if err := c.Rotate(t.Context(), "b"); err == nil || !strings.Contains(err.Error(), "no versions") {
		t.Errorf("a service without versions: %v", err)
	}
}

package stager

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"spillway.dev/spillway/datasync/seal"
)

// KEKs is a key service: it holds the key-encryption keys of bursts, each
// under a name of its own, so that one can be destroyed while all others live.
// Every method may be repeated after a lost answer.
type KEKs interface {
	// Make makes the key unless it is there.
	Make(ctx context.Context, name string) error
	// Look says what is known about the key, or [ErrNoKEK].
	Look(ctx context.Context, name string) (KEK, error)
	// Wrap encrypts a data key; [ErrNoKEK] when there is nothing to wrap with.
	Wrap(ctx context.Context, name string, key seal.DataKey) ([]byte, error)
	// Unwrap returns what Wrap took. [ErrNoKEK] is the key service's own word
	// that the key does not exist, and nothing else: a service that is sealed,
	// out of reach or refuses the caller gives another error. What does not
	// open under a key that exists is [seal.ErrUnwrap].
	Unwrap(ctx context.Context, name string, wrapped []byte) (seal.DataKey, error)
	// Destroy ends the key and returns the key service's own record of it, if
	// it names one. A key that isn't there is destroyed.
	Destroy(ctx context.Context, name string) (auditRef string, err error)
}

// VersionedKEKs is what a key service offers whose keys have versions.
type VersionedKEKs interface {
	KEKs
	// Rotate makes a new version; the old ones still unwrap.
	Rotate(ctx context.Context, name string) error
	// Retire destroys every version but the newest.
	Retire(ctx context.Context, name string) error
}

// KEK describes a key-encryption key.
type KEK struct {
	ID      string   `json:"id"` // as the key service names it
	Version string   `json:"version,omitempty"`
	Method  string   `json:"method"`           // how Destroy ends it, for the certificate
	Doubts  []string `json:"doubts,omitempty"` // why a destruction can't be proven; none: it can
	Beyond  string   `json:"beyond,omitempty"` // what no proof of its destruction reaches
}

// ErrNoKEK says that the key service has no such key-encryption key.
var ErrNoKEK = errors.New("key-encryption key does not exist")

// CustodyConfig is what a custody needs; only By and Reason may be empty.
type CustodyConfig struct {
	Dir    string // of the wrapped keys: outside ledger, etcd and backups
	KEKs   KEKs
	Random io.Reader
	Now    func() time.Time
	By     string // who acts, for the audit record; empty means the controller
	Reason string // why, where a person acts
}

// Custody is [Keys] over any key service. The data keys lie wrapped in a
// directory of their own, the keys that unwrap them at the key service, so
// that neither is worth anything without the other.
//
// It destroys a key in an order that a crash can't break: a tombstone, after
// which nobody gets the key any more; a look at the key; a canary, wrapped
// when the key was made, has to open; the key is destroyed; the canary has to
// be refused because the key does not exist, while a key that lives opens what
// it wrapped. The last tells a destroyed key from a key service that is silent,
// and from a wrong address. Each step is written down before the next.
type Custody struct {
	cfg CustodyConfig
	dir keyDir
}

// The files of one burst, by their ending.
const (
	dekFile  = ".wrapped"
	tombFile = ".destroyed"
)

// control is the name of a key that no burst has and nothing destroys.
const control = "control"

// wrappedKeys is what the custody keeps of a burst that has a key.
type wrappedKeys struct {
	Burst  string    `json:"burst"`
	Made   time.Time `json:"made"`
	Key    []byte    `json:"key"`    // the data key
	Canary []byte    `json:"canary"` // a key that seals nothing
}

// tombstone is what the custody keeps of a burst whose key is destroyed, or
// is being destroyed.
type tombstone struct {
	Burst  string       `json:"burst"`
	Begun  time.Time    `json:"begun"`
	Looked bool         `json:"looked,omitempty"` // the fields below say what was seen before the end
	KEK    KEK          `json:"kek,omitzero"`
	Made   time.Time    `json:"made,omitzero"`
	Canary []byte       `json:"canary,omitempty"`
	Opened bool         `json:"opened,omitempty"`
	Done   *Destruction `json:"done,omitempty"`
}

// NewCustody opens or makes the directory, for its owner only.
func NewCustody(cfg CustodyConfig) (*Custody, error) {
	if cfg.By == "" {
		cfg.By = "controller"
	}
	dir, err := openKeyDir(cfg.Dir, cfg.Random)
	if err != nil {
		return nil, err
	}
	return &Custody{cfg: cfg, dir: dir}, nil
}

// Create implements [Keys]. A crash before the wrapped key is written leaves a
// key-encryption key that wraps nothing: the next call makes the data key
// under it. A key that the key service does not give back is never handed out.
func (c *Custody) Create(ctx context.Context, burst string) (seal.DataKey, error) {
	return c.locked(burst, "make", func(name string) (seal.DataKey, error) {
		key, err := c.get(ctx, burst)
		if !errors.Is(err, ErrNoKey) {
			return key, err
		}
		if err := c.cfg.KEKs.Make(ctx, name); err != nil {
			return seal.DataKey{}, err
		}
		if key, err = seal.NewDataKey(c.cfg.Random); err != nil {
			return seal.DataKey{}, err
		}
		if err := c.keep(ctx, burst, key, c.cfg.Now().UTC()); err != nil {
			return seal.DataKey{}, err
		}
		return key, c.note(burst, "made", "")
	})
}

// keep wraps a data key, and a canary with it, and writes both.
func (c *Custody) keep(ctx context.Context, burst string, key seal.DataKey, made time.Time) error {
	name := kekName(burst)
	canary, err := seal.NewDataKey(c.cfg.Random)
	if err != nil {
		return err
	}
	w := wrappedKeys{Burst: burst, Made: made}
	if w.Key, err = c.cfg.KEKs.Wrap(ctx, name, key); err != nil {
		return err
	}
	if w.Canary, err = c.cfg.KEKs.Wrap(ctx, name, canary); err != nil {
		return err
	}
	if back, err := c.cfg.KEKs.Unwrap(ctx, name, w.Key); err != nil || back != key {
		return fmt.Errorf("the key service does not give back what it wrapped: %w: look at its log", errors.Join(seal.ErrUnwrap, err))
	}
	return c.dir.writeJSON(name+dekFile, w)
}

// Get implements [Keys].
func (c *Custody) Get(ctx context.Context, burst string) (seal.DataKey, error) {
	return c.locked(burst, "get", func(string) (seal.DataKey, error) { return c.get(ctx, burst) })
}

// locked runs one act on a burst's key, alone.
func (c *Custody) locked(burst, act string, do func(name string) (seal.DataKey, error)) (seal.DataKey, error) {
	name := kekName(burst)
	unlock, err := c.dir.lock(name[:1]) // few locks: they don't pile up with the bursts
	if err != nil {
		return seal.DataKey{}, fmt.Errorf("%s key of burst %s: %w", act, burst, err)
	}
	defer unlock()
	key, err := do(name)
	if err != nil {
		return seal.DataKey{}, fmt.Errorf("%s key of burst %s: %w", act, burst, err)
	}
	return key, nil
}

func (c *Custody) get(ctx context.Context, burst string) (seal.DataKey, error) {
	name := kekName(burst)
	switch _, err := c.dir.read(name + tombFile); {
	case err == nil:
		return seal.DataKey{}, ErrKeyDestroyed
	case !errors.Is(err, fs.ErrNotExist):
		return seal.DataKey{}, err
	}
	var w wrappedKeys
	err := c.dir.readJSON(name+dekFile, &w)
	if errors.Is(err, fs.ErrNotExist) {
		return seal.DataKey{}, ErrNoKey
	}
	if err != nil {
		return seal.DataKey{}, err
	}
	return c.cfg.KEKs.Unwrap(ctx, name, w.Key)
}

// Rotate wraps the burst's data key under a new version of its key-encryption
// key and destroys the old versions: a copy of the wrapped key that went astray
// is worthless then. A crash in the middle leaves a key that opens; repeat it.
func (c *Custody) Rotate(ctx context.Context, burst string) error {
	_, err := c.locked(burst, "rotate", func(name string) (seal.DataKey, error) {
		keks, ok := c.cfg.KEKs.(VersionedKEKs)
		if !ok {
			return seal.DataKey{}, errors.New("this key service has no versions of keys: end the burst, whose next attempt gets a key of its own")
		}
		key, err := c.get(ctx, burst)
		if err != nil {
			return key, err
		}
		var old wrappedKeys
		if err := c.dir.readJSON(name+dekFile, &old); err != nil {
			return key, err
		}
		if err := keks.Rotate(ctx, name); err != nil {
			return key, err
		}
		if err := c.keep(ctx, burst, key, old.Made); err != nil {
			return key, err
		}
		if err := keks.Retire(ctx, name); err != nil {
			return key, err
		}
		if _, err := keks.Unwrap(ctx, name, old.Key); !errors.Is(err, seal.ErrUnwrap) {
			return key, fmt.Errorf("what the old version wrapped is not refused (%w): rotate again", errors.Join(errStillOpens, err))
		}
		return key, c.note(burst, "rotated", "")
	})
	return err
}

var errStillOpens = errors.New("the key service does not refuse to unwrap")

// Destroy implements [Keys]. An error says that nothing is proven yet, and that
// it has to be called again; the key is out of use all the same.
func (c *Custody) Destroy(ctx context.Context, burst string) (Destruction, error) {
	var d Destruction
	_, err := c.locked(burst, "destroy", func(name string) (_ seal.DataKey, err error) {
		d, err = c.destroy(ctx, burst, name)
		return seal.DataKey{}, err
	})
	if err != nil {
		return Destruction{}, err
	}
	return d, nil
}

func (c *Custody) destroy(ctx context.Context, burst, name string) (Destruction, error) {
	var s tombstone
	err := c.dir.readJSON(name+tombFile, &s)
	if errors.Is(err, fs.ErrNotExist) {
		s = tombstone{Burst: burst, Begun: c.cfg.Now().UTC()}
		if err = c.dir.writeJSON(name+tombFile, s); err == nil {
			err = c.note(burst, "destroying", "")
		}
	}
	if err != nil {
		return Destruction{}, err
	}
	if s.Done != nil {
		return *s.Done, nil
	}
	if !s.Looked {
		if err := c.look(ctx, name, &s); err != nil {
			return Destruction{}, err
		}
	}
	d, err := c.end(ctx, name, s)
	if err != nil {
		return Destruction{}, err
	}
	if err := c.dir.erase(name + dekFile); err != nil {
		return Destruction{}, err
	}
	if err := c.note(burst, "destroyed", d.String()); err != nil {
		return Destruction{}, err
	}
	s.Done = &d
	return d, c.dir.writeJSON(name+tombFile, s)
}

// look records what can be seen only while the key lives.
func (c *Custody) look(ctx context.Context, name string, s *tombstone) error {
	var w wrappedKeys
	if err := c.dir.readJSON(name+dekFile, &w); err != nil && !errors.Is(err, fs.ErrNotExist) {
		// A damaged file wrapped something, and nobody can say what: no canary.
		s.KEK.Doubts = append(s.KEK.Doubts, err.Error())
	}
	kek, err := c.cfg.KEKs.Look(ctx, name)
	if errors.Is(err, ErrNoKEK) {
		kek.Method = "no key was ever made"
		if len(w.Key) > 0 {
			kek.Method = "the key was gone already"
			kek.Doubts = append(kek.Doubts, "the key was gone before it was destroyed, so nobody saw whether a copy of it was taken")
		}
	} else if err != nil {
		return err
	}
	kek.Doubts = append(s.KEK.Doubts, kek.Doubts...)
	if len(w.Canary) > 0 {
		switch _, err := c.cfg.KEKs.Unwrap(ctx, name, w.Canary); {
		case err == nil:
			s.Opened = true
		case !errors.Is(err, ErrNoKEK) && !errors.Is(err, seal.ErrUnwrap):
			return err
		}
	}
	s.Looked, s.KEK, s.Made, s.Canary = true, kek, w.Made, w.Canary
	return c.dir.writeJSON(name+tombFile, s)
}

// end destroys the key-encryption key and sees that it is gone.
func (c *Custody) end(ctx context.Context, name string, s tombstone) (Destruction, error) {
	keks := c.cfg.KEKs
	live, err := seal.NewDataKey(c.cfg.Random)
	if err != nil {
		return Destruction{}, err
	}
	if err := keks.Make(ctx, control); err != nil {
		return Destruction{}, fmt.Errorf("key that lives on: %w", err)
	}
	wrapped, err := keks.Wrap(ctx, control, live)
	if err != nil {
		return Destruction{}, fmt.Errorf("key that lives on: %w", err)
	}
	audit, err := keks.Destroy(ctx, name)
	if err != nil {
		return Destruction{}, err
	}
	d := Destruction{
		Burst: s.Burst, KEK: s.KEK, Method: s.KEK.Method, Doubts: s.KEK.Doubts, AuditRef: audit, Made: s.Made, At: c.cfg.Now().UTC(),
		Canary: Canary{Opened: s.Opened},
	}
	if _, err := keks.Look(ctx, name); !errors.Is(err, ErrNoKEK) {
		return Destruction{}, fmt.Errorf("it was deleted and is there all the same: %w: it is tried again", errors.Join(errStillOpens, err))
	}
	if len(s.Canary) > 0 {
		if _, err := keks.Unwrap(ctx, name, s.Canary); !errors.Is(err, ErrNoKEK) {
			return Destruction{}, fmt.Errorf("the canary was not refused as destroyed: %w: it is tried again", errors.Join(errStillOpens, err))
		}
		sum := sha256.Sum256(s.Canary)
		d.Canary.SHA256, d.Canary.Refused = hex.EncodeToString(sum[:]), true
	}
	if back, err := keks.Unwrap(ctx, control, wrapped); err != nil || back != live {
		return Destruction{}, fmt.Errorf("a key that lives does not unwrap, so the refusal shows nothing: %w", errors.Join(seal.ErrUnwrap, err))
	}
	d.Canary.LiveOpened, d.Canary.At = true, c.cfg.Now().UTC()
	if !d.Canary.Opened || !d.Canary.Refused {
		d.Doubts = append(d.Doubts, "no canary was seen to open before and to be refused after")
	}
	return d, nil
}

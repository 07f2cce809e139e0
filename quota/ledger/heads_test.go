package ledger_test

import (
	"crypto/ed25519"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"spillway.dev/spillway/quota/ledger"
)

// aKey is a signing key that is the same for the same number.
func aKey(n byte) ed25519.PrivateKey {
	seed := make([]byte, ed25519.SeedSize)
	seed[0] = n
	return ed25519.NewKeyFromSeed(seed)
}

func public(k ed25519.PrivateKey) ed25519.PublicKey { return k.Public().(ed25519.PublicKey) }

// kept is signed heads as a second party keeps them, one a line.
func kept(t *testing.T, heads ...ledger.SignedHead) string {
	t.Helper()
	var b strings.Builder
	for _, h := range heads {
		if err := json.NewEncoder(&b).Encode(h); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// A journal that was written anew, or cut off, with a chain that fits and sense
// in every row, is found out by a head that somebody else has kept.
func TestSignedHeadsFindWhatAChainCant(t *testing.T) {
	f := eventful(t)
	key := aKey(1)
	early := ledger.SignHead(key, f.state().Newest())
	_, err := f.Settle(f.ctx(), f.epoch, settlement("two", "2"))
	f.must(err)
	late := ledger.SignHead(key, f.state().Newest())
	heads, err := ledger.ReadHeads(strings.NewReader(kept(t, early, late)), public(key))
	f.must(err)

	r, err := f.Verify(f.ctx(), heads...)
	f.must(err)
	if !r.OK || r.Heads != 2 || r.Covered != 9 || !strings.Contains(r.String(), "up to row 9") {
		t.Errorf("an honest ledger: %s", r)
	}

	f.must(f.Close())
	t.Run("written anew", func(t *testing.T) {
		f := f.copy(t)
		f.rewrite(map[int64]func(*ledger.Row){8: replace("controller-0", "controller-9")})
		f.Ledger = f.open()
		f.verified() // nobody sees it without
		r, err := f.Verify(f.ctx(), heads...)
		f.must(err)
		if r.OK || !strings.Contains(r.String(), "row 8: it is not the row whose head was signed") || !strings.Contains(r.String(), "row 9: it is not") {
			t.Errorf("%s", r)
		}
	})
	t.Run("cut off", func(t *testing.T) {
		f := f.copy(t)
		f.forge("DELETE FROM journal WHERE seq = 9")
		f.Ledger = f.open()
		f.verified()
		r, err := f.Verify(f.ctx(), heads...)
		f.must(err)
		if r.OK || !strings.Contains(r.String(), "the journal ends at row 8, and a head of row 9 was signed") {
			t.Errorf("%s", r)
		}
	})
	t.Run("what came later is not covered", func(t *testing.T) {
		f := f.copy(t)
		f.Ledger = f.open()
		f.lead()
		r, err := f.Verify(f.ctx(), heads...)
		f.must(err)
		if !r.OK || !strings.Contains(r.String(), "not checked: that rows behind row 9") {
			t.Errorf("%s", r)
		}
	})
}

// Only heads of the trusted key count, and one that is not spoils them all.
func TestHeadsThatAreNotTrusted(t *testing.T) {
	key, other := aKey(1), aKey(2)
	head := ledger.Head{Rows: 7, Hash: strings.Repeat("ab", 32), At: time.Date(2026, 11, 2, 10, 0, 0, 5, time.UTC)}
	good := ledger.SignHead(key, head)
	changed := func(change func(*ledger.SignedHead)) ledger.SignedHead {
		h := good
		change(&h)
		return h
	}
	for name, text := range map[string]string{
		"another key":       kept(t, good, ledger.SignHead(other, head)),
		"another row":       kept(t, changed(func(h *ledger.SignedHead) { h.Rows = 8 })),
		"another hash":      kept(t, changed(func(h *ledger.SignedHead) { h.Hash = strings.Repeat("cd", 32) })),
		"another time":      kept(t, changed(func(h *ledger.SignedHead) { h.At = h.At.Add(1) })),
		"no signature":      kept(t, changed(func(h *ledger.SignedHead) { h.Signature = nil })),
		"no row":            kept(t, ledger.SignHead(key, ledger.Head{})),
		"nothing":           "",
		"no JSON":           "head\n",
		"a line cut in two": kept(t, good)[:40],
	} {
		t.Run(name, func(t *testing.T) {
			heads, err := ledger.ReadHeads(strings.NewReader(text), public(key))
			want(t, err, ledger.ErrHead)
			if heads != nil {
				t.Errorf("and gives %v", heads)
			}
		})
	}
	heads, err := ledger.ReadHeads(strings.NewReader(kept(t, good, good)), public(key))
	if err != nil || len(heads) != 2 || heads[1] != head {
		t.Errorf("good ones: %v, %v", heads, err)
	}
}

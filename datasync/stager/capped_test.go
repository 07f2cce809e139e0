package stager_test

import (
	"crypto/rand"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"spillway.dev/spillway/datasync/stager"
)

// A staging keeps to the cap of the hour, object by object and together, and
// says of each byte that it went out.
func TestStagingKeepsToTheCap(t *testing.T) {
	s := newSite(t)
	for _, key := range []string{"set/a", "set/b", "set/c"} {
		s.put(t, key, strings.Repeat(key, 1<<20/len(key)))
	}
	var sent atomic.Int64
	st := stager.New(stager.Config{
		Keys: s.keys, Signer: s.signer, Random: rand.Reader, Now: time.Now,
		Caps: []stager.Cap{{To: 24 * time.Hour, BytesPerSecond: 2 << 20}}, Sent: func(n int) { sent.Add(int64(n)) },
	})
	defer st.Close()
	begun := time.Now()
	p, err := staged(t, st, s.job("capped", "s3://data/set/"))
	if err != nil {
		t.Fatal(err)
	}
	took, least := time.Since(begun), time.Duration(p.BytesMoved)*time.Second/(2<<20)
	if took < least || p.BytesMoved < 3<<20-10 || sent.Load() != p.BytesMoved {
		t.Errorf("%d bytes moved, %d said, in %v, want %v or more", p.BytesMoved, sent.Load(), took, least)
	}
}

//go:build !postgres

package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
)

// onDisk is a fixture whose ledger lies on a disk with failings.
func onDisk(t *testing.T) (*fixture, *disk) {
	t.Helper()
	f, d := newFixture(t), newDisk(t)
	f.must(f.Close())
	l, err := ledger.Open(f.ctx(), f.path, ledger.Options{Now: func() time.Time { return f.now }}.OnDisk(d.name))
	f.must(err)
	t.Cleanup(func() { _ = l.Close() }) // a second Close is harmless
	f.Ledger = l
	f.lead() // the first write syncs the header of a new log as well
	return f, d
}

// crowd makes calls wait behind one that is being synced.
type crowd struct {
	f       *fixture
	d       *disk
	release func()
	wg      sync.WaitGroup
	asked   int
	answers atomic.Int64
}

// gather holds the disk with a first reservation in its sync.
func gather(f *fixture, d *disk) *crowd {
	f.t.Helper()
	c := &crowd{f: f, d: d, release: sync.OnceFunc(d.hold())}
	f.t.Cleanup(c.release)
	before := d.count()
	c.start(func() error { return second(f.Reserve(f.ctx(), f.epoch, burst("first", "1"))) }, nil)
	eventually(f.t, "the first is in its sync", func() bool { return d.count() > before })
	return c
}

func (c *crowd) start(call func() error, want error) {
	c.wg.Go(func() {
		if err := call(); !errors.Is(err, want) {
			c.f.t.Errorf("answer is %v, want %v", err, want)
		}
		c.answers.Add(1)
	})
}

// ask adds a call, which waits.
func (c *crowd) ask(call func() error, want error) {
	c.f.t.Helper()
	c.asked++
	c.start(call, want)
	eventually(c.f.t, "the call waits", func() bool { return c.f.Waiting() == c.asked })
}

// disperse lets the disk go on and returns how many syncs it took from there.
func (c *crowd) disperse() int {
	before := c.d.count()
	if n := c.answers.Load(); n > 0 {
		c.f.t.Errorf("%d calls were answered before anything was synced", n)
	}
	c.release()
	c.wg.Wait()
	return c.d.count() - before
}

// Who waits while the disk syncs shares the next transaction and its one sync;
// who is refused there, or has gone away, hurts nobody else, and each sees what
// those before it have booked.
func TestOneSyncForAllWhoWait(t *testing.T) {
	f, d := onDisk(t)
	c := gather(f, d)
	reserve := func(uid, amount string) func() error {
		return func() error { return second(f.Reserve(f.ctx(), f.epoch, burst(uid, amount))) }
	}
	c.ask(reserve("a", "4"), nil)
	c.ask(func() error { return f.Permit(f.ctx(), f.epoch, "a", 0) }, nil)
	c.ask(func() error { return f.Permit(f.ctx(), f.epoch, "a", 0) }, quota.ErrPermitUsed)
	short := reserve("b", "5.01") // of 10, the first has 1 and a has 4
	c.ask(func() error {
		if _, ok := errors.AsType[*quota.ShortError](short()); !ok {
			return errors.New("more than the limit was booked")
		}
		return nil
	}, nil)
	c.ask(reserve("a", "4"), nil)
	c.ask(reserve("a", "3"), quota.ErrConflict)
	c.ask(func() error { return second(f.Reserve(f.ctx(), f.epoch-1, burst("c", "1"))) }, quota.ErrStaleEpoch)
	c.ask(func() error { return second(f.Shrink(f.ctx(), f.epoch, "a", eur("2"), "sold out")) }, nil)
	c.ask(func() error { return second(f.Settle(f.ctx(), f.epoch, settlement("a", "1"))) }, nil)
	c.ask(reserve("b", "8"), nil) // a has left 1 spent
	c.ask(func() error {
		return f.RecordUsage(f.ctx(), f.epoch, []quota.Usage{usage(1, "2026-10-05 08:00", "2026-10-05 09:00")})
	}, nil)
	c.ask(func() error {
		return f.RecordUsage(f.ctx(), f.epoch, []quota.Usage{usage(1, "2026-10-05 08:00", "2026-10-05 09:30")})
	}, quota.ErrConflict)
	if syncs := c.disperse(); syncs != 1 {
		t.Errorf("they took %d syncs", syncs)
	}
	if r := f.verified(); r.Rows != 3+1+5+1 || r.Open != 2 {
		t.Errorf("the journal has %d rows, and %d bursts are open", r.Rows, r.Open)
	}
}

// A caller that has gone away before its turn books nothing; one whose turn has
// come gets the answer.
func TestCancelledWhileItWaits(t *testing.T) {
	f, d := onDisk(t)
	c := gather(f, d)
	ctx, cancel := context.WithCancel(f.ctx())
	c.ask(func() error { return second(f.Reserve(ctx, f.epoch, burst("gone", "1"))) }, context.Canceled)
	c.ask(func() error { return second(f.Reserve(f.ctx(), f.epoch, burst("stays", "1"))) }, nil)
	cancel()
	eventually(t, "the one that has gone is answered", func() bool { return c.answers.Swap(0) == 1 })
	c.disperse()
	_, err := f.Account(f.ctx(), "gone")
	want(t, err, quota.ErrUnknownBurst)
	f.verified()
}

// A call that fails behind something that it has written leaves none of it, and
// the others are booked without it.
func TestAFaultHurtsOnlyItself(t *testing.T) {
	f, d := onDisk(t)
	failure := errors.New("a fault of this program")
	c := gather(f, d)
	c.ask(func() error { return second(f.Reserve(f.ctx(), f.epoch, burst("a", "1"))) }, nil)
	c.ask(func() error { return f.FailBehindARow(f.ctx(), failure) }, failure)
	c.ask(func() error { return second(f.Reserve(f.ctx(), f.epoch, burst("b", "1"))) }, nil)
	c.disperse()
	if r := f.verified(); r.Rows != 6 || r.Epoch != f.epoch {
		t.Errorf("the journal has %d rows and epoch %d", r.Rows, r.Epoch)
	}
}

// After a sync that failed nobody knows what the disk holds: all who waited for
// it are told so, nothing more is written, and opening the file anew shows what
// became of them.
// cases: PostgreSQL's "fsync gate" of 2018: after a failed fsync, the next one may report success and the data be lost
func TestAFailedSyncEndsTheWriting(t *testing.T) {
	f, d := onDisk(t)
	d.failing(true)
	_, err := f.Reserve(f.ctx(), f.epoch, burst("a", "1"))
	want(t, err, ledger.ErrOutcomeUnknown)
	if !strings.Contains(err.Error(), "start this process again, verify the ledger, and ask again with the same key") {
		t.Errorf("error is %v", err)
	}
	d.failing(false)
	before := d.count()
	_, err = f.Reserve(f.ctx(), f.epoch, burst("b", "1"))
	if err == nil || errors.Is(err, ledger.ErrOutcomeUnknown) || !strings.Contains(err.Error(), "nothing was booked: check the disk, start this process again") {
		t.Errorf("error is %v", err)
	}
	if d.count() != before {
		t.Error("something was written on a disk that has lost a write")
	}
	f.reopen()
	f.lead()
	for _, uid := range []string{"a", "b"} {
		_, err = f.Reserve(f.ctx(), f.epoch, burst(uid, "1"))
		f.must(err)
	}
	if r := f.verified(); r.Bursts != 2 {
		t.Errorf("%d bursts are booked", r.Bursts)
	}
}

// The power fails at any moment, with any part of what was not synced written or
// not: what was answered with yes is there, and the whole verifies.
// cases: C-47 codenotary/immudb (changelog of 1.11.1)
func TestPowerCut(t *testing.T) {
	const ledgers, cuts = 8, 25
	rng := rand.New(rand.NewPCG(11, 11))
	lost := 0
	for n := range ledgers {
		d := newDisk(t)
		d.images = map[string]*image{}
		f := &fixture{t: t, path: filepath.Join(t.TempDir(), "ledger.db")}
		l, err := ledger.Open(f.ctx(), f.path, ledger.Options{Now: time.Now}.OnDisk(d.name))
		f.must(err)
		f.Ledger = l
		f.lead()
		f.must(f.SetBudgets(f.ctx(), f.epoch, []quota.Budget{
			{ID: "all", Scope: quota.ScopeGlobal, Window: quota.WindowMonth, Limit: eur("1000000"), Hard: true},
		}))
		told := writeUntil(f, n, func(told *sync.Map) {
			for range cuts {
				lost += checkCut(t, rng, d, told)
			}
		})
		if told == 0 {
			t.Error("nothing was answered with yes")
		}
		f.must(l.Close())
	}
	if lost == 0 {
		t.Error("no cut has lost anything: the disk loses nothing")
	}
}

// writeUntil books from four callers while f runs, and returns how often they were told yes.
func writeUntil(f *fixture, n int, while func(told *sync.Map)) (yes int64) {
	var told sync.Map
	var count atomic.Int64
	ctx, stop := context.WithCancel(f.ctx())
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				uid := fmt.Sprintf("%d-%d-%d", n, w, i)
				if _, err := f.Reserve(ctx, f.epoch, burst(uid, "1")); err == nil {
					told.Store(uid, true)
					count.Add(1)
				}
			}
		})
	}
	while(&told)
	stop()
	wg.Wait()
	return count.Load()
}

// checkCut cuts the power and returns how many writes it has lost.
func checkCut(t *testing.T, rng *rand.Rand, d *disk, told *sync.Map) int {
	t.Helper()
	var answered []string
	told.Range(func(uid, _ any) bool { answered = append(answered, uid.(string)); return true })
	dir := t.TempDir()
	lost := d.cut(t, rng, dir)
	l, err := ledger.Open(t.Context(), filepath.Join(dir, "ledger.db"), ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	book, err := l.Book(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, uid := range answered {
		if book.Open[uid].State != quota.Reserved {
			t.Fatalf("burst %s was answered with yes and is gone", uid)
		}
	}
	if r, err := l.Verify(t.Context()); err != nil || !r.OK {
		t.Fatalf("%v\n%s", err, r)
	}
	return lost
}

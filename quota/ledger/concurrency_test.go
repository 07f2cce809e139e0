package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
)

// 64 writers on two handles of one ledger reach the limit exactly and never pass it.
// cases: C-24 BerriAI/litellm#34732, theam/facility#401, agent-os#823; C-16 volcano-sh/volcano#921
func TestManyWritersNeverPassAHardBudget(t *testing.T) {
	f := newFixture(t)
	handles := []*ledger.Ledger{f.Ledger, f.open()}
	const writers, each = 64, 4 // 256 asks of 0.10 for 10.00
	var yes, no atomic.Int64
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				_, err := handles[w%2].Reserve(f.ctx(), f.epoch, burst(fmt.Sprintf("%d-%d", w, i), "0.10"))
				switch short, ok := errors.AsType[*quota.ShortError](err); {
				case err == nil:
					yes.Add(1)
				case ok && short.Missing == eur("0.10"):
					no.Add(1)
				default:
					t.Errorf("writer %d: %v", w, err)
				}
			}
		})
	}
	wg.Wait()
	if yes.Load() != 100 || no.Load() != writers*each-100 {
		t.Errorf("%d were let through and %d refused, want 100 and %d", yes.Load(), no.Load(), writers*each-100)
	}
	for i, l := range handles {
		book, err := l.Book(f.ctx())
		f.must(err)
		if got := book.Windows["team"]["2026-10"].Reserved; got != eur("10") || len(book.Open) != 100 {
			t.Errorf("handle %d sees %v reserved for %d bursts", i, got, len(book.Open))
		}
	}
	f.verified()
}

// One burst that many ask for at once is reserved once, permitted once and
// settled once, and every one who asks for the money gets the same answer.
func TestOneBurstAskedForByMany(t *testing.T) {
	f := newFixture(t)
	handles := []*ledger.Ledger{f.Ledger, f.open()}
	receipts := make([]quota.Receipt, 32)
	settled := make([]quota.Receipt, 32)
	var permits atomic.Int64
	var wg sync.WaitGroup
	for i := range receipts {
		wg.Go(func() {
			l := handles[i%2]
			var err error
			if receipts[i], err = l.Reserve(f.ctx(), f.epoch, burst("a", "4")); err != nil {
				t.Error(err)
			}
			switch err := l.Permit(f.ctx(), f.epoch, "a", 0); {
			case err == nil:
				permits.Add(1)
			case !errors.Is(err, quota.ErrPermitUsed) && !errors.Is(err, quota.ErrSettled):
				t.Error(err)
			}
			if settled[i], err = l.Settle(f.ctx(), f.epoch, settlement("a", "3")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i := range receipts {
		if receipts[i].Hash != receipts[0].Hash || settled[i].Hash != settled[0].Hash {
			t.Errorf("caller %d got rows %d and %d, caller 0 got %d and %d", i, receipts[i].Seq, settled[i].Seq, receipts[0].Seq, settled[0].Seq)
		}
	}
	if permits.Load() != 1 {
		t.Errorf("%d permits were given", permits.Load())
	}
	f.verified()
}

// While one writes, readers see whole states only.
func TestReadersSeeCommittedStatesOnly(t *testing.T) {
	f := newFixture(t)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(done)
		for i := range 60 {
			if _, err := f.Reserve(f.ctx(), f.epoch, burst(fmt.Sprint(i), "0.10")); err != nil {
				t.Error(err)
			}
			if _, err := f.Settle(f.ctx(), f.epoch, settlement(fmt.Sprint(i), "0.10")); err != nil {
				t.Error(err)
			}
		}
	})
	other := f.open()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		r, err := other.Verify(f.ctx())
		if err != nil || !r.OK {
			t.Fatalf("%v\n%s", err, r)
		}
	}
	wg.Wait()
}

// Processes that create one ledger at once end up with one.
func TestCreatedByManyAtOnce(t *testing.T) {
	path := fresh(t)
	errs := make(chan error, 8)
	for range cap(errs) {
		go func() {
			l, err := ledger.Open(context.Background(), path, ledger.Options{})
			if err == nil {
				_, err = l.BeginEpoch(context.Background(), "a")
				err = errors.Join(err, l.Close())
			}
			errs <- err
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	l, err := ledger.Open(context.Background(), path, ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if r, err := l.Verify(context.Background()); err != nil || !r.OK || r.Epoch != int64(cap(errs)) {
		t.Errorf("report %v, %v", r, err)
	}
}

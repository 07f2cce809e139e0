package ledger

import (
	"context"
	"fmt"
	"time"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

// Reserve books the worst case of a burst against every budget on its path, or
// says why not: see [quota.Book.Reserve]. The key is r.Burst; a repetition
// returns the first receipt, also when the burst has moved on since.
func (l *Ledger) Reserve(ctx context.Context, epoch int64, r quota.Reservation) (quota.Receipt, error) {
	r = r.Normal()
	if err := r.Validate(); err != nil {
		return quota.Receipt{}, err
	}
	first := quota.Event{Kind: quota.KindReserve, Burst: r.Burst, Intent: quota.Intent{Reserve: &r}}
	return l.once(ctx, epoch, first, func(b *quota.Book) (quota.Event, error) { return b.Reserve(r) })
}

// Permit allows one create call. Nil is given once for (burst, ordinal, epoch);
// the second call is quota.ErrPermitUsed, also when the first answer was lost.
func (l *Ledger) Permit(ctx context.Context, epoch int64, burst string, ordinal int) error {
	p := quota.Permit{Burst: burst, Ordinal: ordinal, Epoch: epoch}
	return l.asLeader(ctx, epoch, onceKey{}, func(t *txn) error {
		if _, open := t.book.Open[burst]; !open {
			if _, err := t.history(burst); err != nil {
				return fmt.Errorf("permit machine %d of burst %q: %w", ordinal, burst, err)
			}
		}
		ev, err := t.book.Permit(p)
		if err != nil {
			return err
		}
		return t.appendIntent(ev)
	})
}

// Extend adds money and time to an open reservation; key makes it idempotent
// within the burst. A zero until leaves the end where it is.
func (l *Ledger) Extend(ctx context.Context, epoch int64, burst, key string, more money.Amount, until time.Time) (quota.Receipt, error) {
	x := quota.Extension{Burst: burst, Key: key, More: more, Until: until}.Normal()
	if err := x.Validate(); err != nil {
		return quota.Receipt{}, err
	}
	first := quota.Event{Kind: quota.KindExtend, Burst: burst, Key: key, Intent: quota.Intent{Extend: &x}}
	return l.once(ctx, epoch, first, func(b *quota.Book) (quota.Event, error) { return b.Extend(x) })
}

// Settle closes the account of a burst; see [quota.Book.Settle]. Call it on
// proof that its machines are gone, also for a burst that bought nothing.
func (l *Ledger) Settle(ctx context.Context, epoch int64, s quota.Settlement) (quota.Receipt, error) {
	s = s.Normal()
	if err := s.Validate(); err != nil {
		return quota.Receipt{}, err
	}
	first := quota.Event{Kind: quota.KindSettle, Burst: s.Burst, Intent: quota.Intent{Settle: &s}}
	return l.once(ctx, epoch, first, func(b *quota.Book) (quota.Event, error) { return b.Settle(s) })
}

// Shrink lowers a reservation to what can still be charged and ends the buying
// for this burst. Repeating it changes nothing.
func (l *Ledger) Shrink(ctx context.Context, epoch int64, burst string, to money.Amount, reason string) (quota.Receipt, error) {
	d := quota.Reduction{Burst: burst, To: to, Reason: reason}.Normal()
	if err := d.Validate(); err != nil {
		return quota.Receipt{}, err
	}
	var receipt quota.Receipt
	err := l.asLeader(ctx, epoch, onceKey{}, func(t *txn) error {
		past, err := t.history(burst)
		if err != nil {
			return fmt.Errorf("shrink burst %q: %w", burst, err)
		}
		if a := t.book.Open[burst]; a.State == quota.Draining && a.Pending.Nano == d.To.Nano {
			receipt = lastOf(past, quota.KindShrink)
			return nil
		}
		ev, err := t.book.Shrink(d)
		if err != nil {
			return err
		}
		intent, err := encodeIntent(ev.Intent)
		if err != nil {
			return err
		}
		receipt, err = t.append(ev, intent)
		return err
	})
	return receipt, err
}

// once answers a call that carries an idempotency key. When its kind and key
// are in the burst's history, the first answer is given again if the content is
// the same; otherwise propose decides on the book as it is now.
func (l *Ledger) once(ctx context.Context, epoch int64, first quota.Event, propose func(*quota.Book) (quota.Event, error)) (quota.Receipt, error) {
	intent, err := encodeIntent(first.Intent)
	if err != nil {
		return quota.Receipt{}, err
	}
	var receipt quota.Receipt
	key := onceKey{first.Burst, string(first.Kind), first.Key}
	err = l.asLeader(ctx, epoch, key, func(t *txn) (err error) {
		if before, known := t.known[key]; known {
			receipt, err = t.answered(first, before, intent)
			return err
		}
		if _, open := t.book.Open[first.Burst]; !open && first.Kind != quota.KindReserve {
			if _, err := t.history(first.Burst); err != nil {
				return fmt.Errorf("%s of burst %q: %w", first.Kind, first.Burst, err)
			}
		}
		ev, err := propose(&t.book)
		if err != nil {
			return err
		}
		receipt, err = t.append(ev, intent)
		return err
	})
	if err != nil {
		return quota.Receipt{}, err
	}
	return receipt, nil
}

// answered returns the answer that the kind and key of first got before. It is
// quota.ErrConflict when they were used for another intent.
func (t *txn) answered(first quota.Event, before firstAnswer, intent string) (quota.Receipt, error) {
	if before.intent != intent {
		return quota.Receipt{}, fmt.Errorf("%s of burst %q: %w than in journal row %d; the first one stands", first.Kind, first.Burst, quota.ErrConflict, before.seq)
	}
	past, err := t.booked(first.Burst)
	for _, a := range past {
		if a.row.seq == before.seq {
			return a.receipt, err
		}
	}
	return quota.Receipt{}, err
}

// booked returns all that was booked on a burst, by this transaction too.
func (t *txn) booked(burst string) ([]answer, error) {
	if err := t.flush(); err != nil {
		return nil, err
	}
	return readHistory(t.ctx, t.tx, burst, t.book.Closes)
}

// history returns what was booked on an open burst; quota.ErrUnknownBurst when
// there is nothing, quota.ErrSettled when it is closed.
func (t *txn) history(burst string) ([]answer, error) {
	past, err := t.booked(burst)
	if err != nil {
		return nil, err
	}
	if len(past) == 0 {
		return nil, quota.ErrUnknownBurst
	}
	if past[len(past)-1].receipt.State == quota.Settled {
		return nil, quota.ErrSettled
	}
	return past, nil
}

// lastOf is the receipt of the newest change of a kind.
func lastOf(past []answer, kind quota.Kind) quota.Receipt {
	for i := len(past) - 1; i >= 0; i-- {
		if past[i].row.kind == string(kind) {
			return past[i].receipt
		}
	}
	return quota.Receipt{}
}

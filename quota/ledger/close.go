package ledger

import (
	"context"
	"fmt"
	"slices"
	"time"

	"spillway.dev/spillway/quota"
)

// CloseMonth ends a billing month; see [quota.Book.Close]. What is posted later goes
// to the first month that is still open, and never to this one.
func (l *Ledger) CloseMonth(ctx context.Context, epoch int64, month, zone, by string) (quota.Closing, error) {
	var c quota.Closing
	err := l.asLeader(ctx, epoch, onceKey{}, func(t *txn) error {
		now := max(t.now().UnixNano(), t.head.recorded+1) // as the row will say
		ev, err := t.book.Close(month, zone, by, time.Unix(0, now))
		if err != nil {
			return err
		}
		c = *ev.Intent.Close
		return t.appendIntent(ev)
	})
	return c, err
}

// Correct books what a settled burst has really cost; see [quota.Correction].
// The same correction twice in a row is booked once.
func (l *Ledger) Correct(ctx context.Context, epoch int64, c quota.Correction) (quota.Receipt, error) {
	c = c.Normal()
	if err := c.Validate(); err != nil {
		return quota.Receipt{}, err
	}
	var receipt quota.Receipt
	err := l.asLeader(ctx, epoch, onceKey{}, func(t *txn) error {
		past, err := t.booked(c.Burst)
		if err != nil {
			return err
		}
		before, last, err := aroundSettlement(past)
		if err != nil {
			return fmt.Errorf("correct burst %q: %w", c.Burst, err)
		}
		if in := last.event.Intent.Correct; in != nil && *in == c {
			receipt = last.receipt
			return nil
		}
		ev, err := t.book.Correct(before, last.receipt.Account, c)
		if err != nil {
			return err
		}
		intent, err := encodeIntent(ev.Intent)
		if err != nil {
			return err
		}
		if receipt, err = t.append(ev, intent); err != nil {
			return err
		}
		ev.At = receipt.At
		receipt.Account, err = last.receipt.Corrected(ev, t.book.OpenSince(ev.At))
		return err
	})
	return receipt, err
}

// aroundSettlement returns the account right before its settlement, and the last
// thing that was booked on it.
func aroundSettlement(past []answer) (before quota.Account, last answer, err error) {
	if len(past) == 0 {
		return before, last, quota.ErrUnknownBurst
	}
	last = past[len(past)-1]
	if last.receipt.State != quota.Settled {
		return before, last, fmt.Errorf("%w: it is not settled yet; the settlement posts the actual cost", quota.ErrInvalid)
	}
	settled := slices.IndexFunc(past, func(a answer) bool { return a.event.Kind == quota.KindSettle })
	return past[settled-1].receipt.Account, last, nil
}

// closing checks the closing of a month: it could be closed then, and it names
// the bursts that were pending.
func (v *verifier) closing(seq int64, ev quota.Event) {
	open := make(map[string]quota.Account)
	for uid, b := range v.bursts {
		if b != nil {
			open[uid] = quota.Account{Reservation: b.reservation}
		}
	}
	c := *ev.Intent.Close
	book := quota.Book{Open: open, Closes: v.budgets.Closes}
	want, err := book.Close(c.Month, c.Zone, c.By, ev.At)
	if err != nil {
		v.found(seq, "%v", err)
	} else if diff := fmt.Sprint(*want.Intent.Close); diff != fmt.Sprint(c) || len(ev.Entries) > 0 {
		v.found(seq, "the month was %s when it was closed, the row says %v", diff, c)
	}
	if _, err := v.budgets.Apply(quota.Event{Kind: ev.Kind, At: ev.At, Intent: ev.Intent}); err != nil {
		v.found(seq, "%v", err)
	}
}

// correction checks what one row alone shows: it follows a settlement, and
// leaves no hard budget above its limit. What it moves is checked by [verifier.reposts].
func (v *verifier) correction(seq int64, ev quota.Event) {
	b, known := v.bursts[ev.Burst]
	if !known || b != nil || ev.Intent.Correct.Burst != ev.Burst {
		v.found(seq, "%s of burst %q, which is not settled", ev.Kind, ev.Burst)
		return
	}
	if err := ev.Intent.Correct.Validate(); err != nil {
		v.found(seq, "%v", err)
	}
	v.corrected[ev.Burst]++
	if key := fmt.Sprint(v.corrected[ev.Burst]); key != ev.Key {
		v.found(seq, "%s of burst %q stands under %q, its key is %q", ev.Kind, ev.Burst, ev.Key, key)
	}
	net := make(map[quota.Hold]int64)
	for _, e := range ev.Entries {
		for account, n := range map[quota.AccountName]int64{e.Debit: e.Amount.Nano, e.Credit: -e.Amount.Nano} {
			if h, side, ok := account.Window(); ok && side == "spent" {
				net[h] += n
			}
		}
	}
	for h, n := range net {
		if n > 0 {
			v.withinLimit(seq, h)
		}
	}
}

// reposts checks what the corrections moved: the whole of the old cost back, and
// the new one in its place. It reads the rows of the corrected bursts once more.
func (v *verifier) reposts(ctx context.Context, q querier) error {
	for burst := range v.corrected {
		past, err := readHistory(ctx, q, burst, v.budgets.Closes)
		if err != nil {
			v.found(0, "the history of the corrected burst %q can't be read: %v", burst, err)
			continue
		}
		before, _, err := aroundSettlement(past)
		if err != nil {
			v.found(0, "correct burst %q: %v", burst, err)
			continue
		}
		for i, a := range past {
			if a.event.Kind != quota.KindCorrect {
				continue
			}
			want, err := v.budgets.Reposts(before, past[i-1].receipt.Account, *a.event.Intent.Correct)
			if err != nil {
				v.found(a.row.seq, "%v", err)
			} else if !slices.Equal(want, a.event.Entries) {
				v.found(a.row.seq, "correction of burst %q: it does not take back the old cost and post the new one", burst)
			}
		}
	}
	return nil
}

// StateUntil is [View.State] as it was at a moment: of the rows that were booked
// until then.
func (v *View) StateUntil(ctx context.Context, at time.Time) (State, error) {
	return v.state(ctx, selectRows+" WHERE recorded <= $1 ORDER BY seq", at.UnixNano())
}

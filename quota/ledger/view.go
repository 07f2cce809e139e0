package ledger

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"maps"
	"slices"
	"time"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

// View is the ledger at one moment, for reports: whatever is booked meanwhile,
// all that is read through one View fits together.
type View struct {
	*database
	path string
	tx   *sql.Tx
}

// State is what the whole journal adds up to.
type State struct {
	Rows     int64
	Head     string    // hash of the last row, in hex; empty without rows
	Last     time.Time // record time of the last row
	Book     quota.Book
	Accounts []quota.Receipt // one a burst, in the order of reservation, each as its last row left it
	Balances []Balance       // not zero, by account and currency
	// Accepted says when the overrun of a currency was last accepted by a person.
	Accepted map[money.Currency]time.Time
}

// Balance is debits less credits of one account.
type Balance struct {
	Account quota.AccountName `json:"account"`
	Balance money.Amount      `json:"balance"`
}

// View calls f with the ledger as it is now. It takes no lock that a writer
// would wait for.
func (l *Ledger) View(ctx context.Context, f func(*View) error) error {
	tx, err := l.read.BeginTx(ctx, &l.view)
	if err != nil {
		return explain(l.path, err)
	}
	defer tx.Rollback() //nolint:errcheck // it has only read
	return f(&View{database: l.database, path: l.path, tx: tx})
}

// State replays the journal. It fails at the first row that is not what was once
// written.
func (v *View) State(ctx context.Context) (State, error) { return v.state(ctx, selectAll) }

// state replays the rows that a query selects, the journal from its start on.
func (v *View) state(ctx context.Context, query string, args ...any) (State, error) {
	s := State{Accepted: make(map[money.Currency]time.Time)}
	var last head
	index := make(map[string]int) // of Accounts, by burst
	sums := make(map[Balance]money.Amount)
	err := readAhead(ctx, v.tx, rowsOf{query, args, glance}, func(p prepared) error {
		r := &p.row
		if err := r.follows(last); err != nil {
			return err
		}
		last = r.head()
		ev, err := p.proven()
		if err != nil {
			return err
		}
		var before quota.Account
		if i, known := index[r.burst]; known {
			before = s.Accounts[i].Account
		}
		a, err := r.apply(&s.Book, ev, before)
		if err != nil {
			return err
		}
		if err := addUp(sums, ev.Entries); err != nil {
			return r.broken(err.Error())
		}
		switch {
		case ev.Kind == quota.KindAccept && ev.Intent.Accept != nil:
			s.Accepted[ev.Intent.Accept.Amount.Currency] = ev.At
		case ev.Burst != "":
			s.keep(index, r.receipt(a))
		}
		return nil
	})
	if err != nil {
		return State{}, explain(v.path, err)
	}
	if s.Rows = last.seq; last.seq > 0 {
		s.Head, s.Last = hex.EncodeToString(last.hash), time.Unix(0, last.recorded).UTC()
	}
	s.Balances = sorted(sums)
	return s, nil
}

func (s *State) keep(index map[string]int, r quota.Receipt) {
	i, known := index[r.Reservation.Burst]
	if !known {
		index[r.Reservation.Burst] = len(s.Accounts)
		s.Accounts = append(s.Accounts, r)
		return
	}
	s.Accounts[i] = r
}

// addUp adds entries to the balances of their accounts. The key is an account
// with a currency and no amount.
func addUp(sums map[Balance]money.Amount, entries []quota.Entry) error {
	for _, e := range entries {
		zero := money.Zero(e.Amount.Currency)
		debit, credit := Balance{e.Debit, zero}, Balance{e.Credit, zero}
		more, err := sums[debit].Add(e.Amount)
		if err != nil {
			return err
		}
		less, err := sums[credit].Sub(e.Amount)
		if err != nil {
			return err
		}
		sums[debit], sums[credit] = more, less
	}
	return nil
}

func sorted(sums map[Balance]money.Amount) []Balance {
	all := []Balance{}
	for k := range maps.Keys(sums) {
		if sum := sums[k]; !sum.IsZero() {
			all = append(all, Balance{k.Account, sum})
		}
	}
	slices.SortFunc(all, func(a, b Balance) int {
		return cmp.Or(cmp.Compare(a.Account, b.Account), cmp.Compare(a.Balance.Currency, b.Balance.Currency))
	})
	return all
}

// Usage is [Ledger.UsageSeconds] at the moment of v.
func (v *View) Usage(ctx context.Context, f quota.UsageFilter) ([]quota.UsageTotal, error) {
	all, err := usageTotals(ctx, v.tx, f)
	if err != nil {
		return nil, explain(v.path, err)
	}
	return all, nil
}

const selectHours = `SELECT hour, namespace, burst, model, sum(share_seconds) FROM usage_total
WHERE ($1 = '' OR tenant = $1) AND hour >= $2 AND hour < $3 GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4`

// UsageHours sums up the usage of one tenant, or of all with "", by UTC hour,
// from the hour of from until that of until; both must be whole hours.
func (v *View) UsageHours(ctx context.Context, tenant string, from, until time.Time) ([]quota.UsageHour, error) {
	first, last, err := hours(quota.UsageFilter{From: from, Until: until})
	if err != nil {
		return nil, err
	}
	rows, err := v.tx.QueryContext(ctx, selectHours, tenant, first, last)
	if err != nil {
		return nil, explain(v.path, err)
	}
	defer rows.Close() //nolint:errcheck // Err says it
	var all []quota.UsageHour
	for rows.Next() {
		var u quota.UsageHour
		var hour int64
		if err := rows.Scan(&hour, &u.Namespace, &u.Burst, &u.GPUModel, &u.ShareSeconds); err != nil {
			return nil, explain(v.path, err)
		}
		u.Hour = time.Unix(hour, 0).UTC()
		all = append(all, u)
	}
	if err := rows.Err(); err != nil {
		return nil, explain(v.path, err)
	}
	return all, nil
}

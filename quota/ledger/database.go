package ledger

import (
	"context"
	"database/sql"
	"time"
)

// database is what differs between those that can hold a ledger. The journal,
// its rules and all other statements are the same in each.
type database struct {
	// lock takes the write lock behind BEGIN; "" where BEGIN itself does.
	lock string
	// known finds the rows of a JSON list of [burst, kind, key].
	known string
	// seen finds the usage records of a JSON list of [stream in hex, number].
	seen string
	// begin is how a transaction that writes begins, view one that reads.
	begin, view sql.TxOptions
	// patience is how long a group may wait for the database; 0 is for ever,
	// where every wait is bounded otherwise.
	patience time.Duration
	// guards looks for what protects the journal in the database itself.
	guards func(ctx context.Context, q querier, v *verifier) error
	// lost reports whether an error leaves open if a commit took place.
	lost func(err error) bool
	// sound says what guards has found in order, unsound what it can't know.
	sound   string
	unsound []string
}

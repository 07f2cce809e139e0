package quota

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"spillway.dev/spillway/quota/money"
)

// ShortError says that one window of one hard budget has no room for what was
// asked. Take it out of an error with errors.AsType[*ShortError].
type ShortError struct {
	Budget   string       `json:"budget"`
	Window   string       `json:"window"` // "2026-10", "2026-10-25" or "fixed"
	Limit    money.Amount `json:"limit"`
	Spent    money.Amount `json:"spent"`
	Reserved money.Amount `json:"reserved"` // promised to bursts that are not settled
	Asked    money.Amount `json:"asked"`
	Missing  money.Amount `json:"missing"` // exactly what the limit would have to be raised by
}

// Error names the budget, the missing amount and what may be done.
func (e *ShortError) Error() string {
	remedy := "wait until reserved money is released, or ask for less"
	if e.Window != "fixed" {
		remedy = "wait until reserved money is released or the next window begins, or ask for less"
	}
	return fmt.Sprintf("budget %q is short by %v in %s (limit %v, spent %v, reserved %v, asked %v): raise its limit by %v, %s",
		e.Budget, e.Missing, e.Window, e.Limit, e.Spent, e.Reserved, e.Asked, e.Missing, remedy)
}

// shortErrors is several budgets that are short at once, the shortest first.
type shortErrors []*ShortError

func (s shortErrors) Error() string {
	texts := make([]string, len(s))
	for i, e := range s {
		texts[i] = e.Error()
	}
	return strings.Join(texts, "; ")
}

func (s shortErrors) Unwrap() []error {
	errs := make([]error, len(s))
	for i, e := range s {
		errs[i] = e
	}
	return errs
}

// err returns s as an error, nil when nothing is short.
func (s shortErrors) err() error {
	switch len(s) {
	case 0:
		return nil
	case 1:
		return s[0]
	}
	slices.SortStableFunc(s, func(a, b *ShortError) int { return cmp.Compare(b.Missing.Nano, a.Missing.Nano) })
	return s
}

package money

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
)

// Whole is the share that stands for one whole GPU, or for the whole machine.
// 840 is divisible by everything from 1 to 8, so that a MIG slice (1/7 = 120),
// an eighth (105) and a quarter (210) are exact.
const Whole = 840

// rateDivisor turns nano-units per hour times seconds times 1/840 into nano-units.
const rateDivisor = 3600 * Whole

// Rate is a price per hour. It is kept per hour because a price per second
// would have to be rounded: 2.10 EUR/h is 0.000583333... EUR/s.
//
// The zero value means "unknown", never "free": [Rate.For] refuses it.
type Rate struct {
	NanoPerHour int64    // nano-units for one hour
	Currency    Currency // empty only in the zero value
}

// IsZero reports whether the price is unknown.
func (r Rate) IsZero() bool { return r.NanoPerHour == 0 }

// For returns what seconds of share cost, share in 1/840 of what is priced
// ([Whole] for all of it, more for several). The result is rounded up to the
// next nano-unit; see the package comment on splitting. It fails with
// [ErrUnknownPrice] when the rate is zero, with [ErrOverflow] when the result
// does not fit, and refuses negative input.
func (r Rate) For(seconds, share int64) (Amount, error) {
	if r.NanoPerHour == 0 {
		return Amount{}, fmt.Errorf("price %d s: %w", seconds, ErrUnknownPrice)
	}
	if r.NanoPerHour < 0 || seconds < 0 || share < 0 || !r.Currency.Valid() {
		return Amount{}, fmt.Errorf("price %d s of %d/%d at %v: price, time and share must not be negative and the price needs a currency", seconds, share, Whole, r)
	}
	nano, ok := mulDivUp(uint64(r.NanoPerHour), uint64(seconds), uint64(share))
	if !ok {
		return Amount{}, fmt.Errorf("price %d s of %d/%d at %v: %w", seconds, share, Whole, r, ErrOverflow)
	}
	return Amount{Nano: nano, Currency: r.Currency}, nil
}

// mulDivUp returns a*b*c/rateDivisor rounded up; ok is false when that does not
// fit into an int64. The product may have up to 189 bits on the way.
func mulDivUp(a, b, c uint64) (n int64, ok bool) {
	hi, lo := bits.Mul64(a, b)
	over, mid := bits.Mul64(hi, c)
	carry, low := bits.Mul64(lo, c)
	mid, more := bits.Add64(mid, carry, 0)
	if over != 0 || more != 0 || mid >= rateDivisor {
		return 0, false
	}
	q, r := bits.Div64(mid, low, rateDivisor)
	if r > 0 && q < math.MaxUint64 {
		q++
	}
	return signed(q, false)
}

// String writes the rate as "2.10 EUR/h", and "unknown" for the zero value.
func (r Rate) String() string {
	if r == (Rate{}) {
		return "unknown"
	}
	return Amount{Nano: r.NanoPerHour, Currency: r.Currency}.String() + "/h"
}

// ParseRate reads "2.10 EUR/h" or "2.10 EUR". A price must be more than zero:
// one that is not known is left out, and nothing is free.
func ParseRate(s string) (Rate, error) {
	a, err := Parse(strings.TrimSuffix(s, "/h"))
	if err != nil {
		return Rate{}, fmt.Errorf("price per hour: %w", err)
	}
	if a.Nano <= 0 {
		return Rate{}, fmt.Errorf("price per hour %q: %w: a price is more than zero; leave out one that is not known", s, ErrSyntax)
	}
	return Rate{NanoPerHour: a.Nano, Currency: a.Currency}, nil
}

// MarshalText writes r as [Rate.String] does, the unknown rate as "".
func (r Rate) MarshalText() ([]byte, error) {
	if r == (Rate{}) {
		return nil, nil
	}
	if r.NanoPerHour <= 0 || !r.Currency.Valid() {
		return nil, fmt.Errorf("write price %v: %w: it needs a currency and must be more than zero", r, ErrSyntax)
	}
	return []byte(r.String()), nil
}

// UnmarshalText reads what [Rate.MarshalText] writes.
func (r *Rate) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*r = Rate{}
		return nil
	}
	parsed, err := ParseRate(string(text))
	if err != nil {
		return err
	}
	*r = parsed
	return nil
}

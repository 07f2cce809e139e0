// Package money holds amounts of money and prices per hour, exactly.
//
// An [Amount] is a whole number of nano-units (1 EUR = 1,000,000,000) of one
// [Currency]; a [Rate] is a price per hour. There is no floating point anywhere
// and nothing wraps: an operation that leaves the range of int64 (about
// 9.2 thousand million EUR) returns [ErrOverflow], and one that would mix two
// currencies returns [ErrCurrency]. Currencies are never converted here.
//
// Rounding happens in one place only, [Rate.For], and always upwards, because
// what Spillway computes from a price is a bound that has to hold. To round
// once, sum up the seconds first: a run that is cut into n pieces costs, summed
// piece by piece, at least as much as in one piece and at most n-1 nano-units
// more. To cut an amount use [Amount.Split], which loses nothing.
package money

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// Errors of this package. They are returned wrapped, so test with errors.Is.
var (
	// ErrOverflow: the result does not fit into an int64 of nano-units.
	ErrOverflow = errors.New("amount of money out of range")
	// ErrCurrency: two amounts of different currencies, or a text that is no currency.
	ErrCurrency = errors.New("currencies do not match")
	// ErrSyntax: a text is not an amount or a price as this package writes them.
	ErrSyntax = errors.New("not an amount of money")
	// ErrUnknownPrice: a cost was asked for from a [Rate] that nobody has set.
	ErrUnknownPrice = errors.New("price is unknown")
)

var (
	_ encoding.TextMarshaler   = Amount{}
	_ encoding.TextUnmarshaler = (*Amount)(nil)
	_ encoding.TextMarshaler   = Rate{}
	_ encoding.TextUnmarshaler = (*Rate)(nil)
)

// nanoPerUnit is how many nano-units make one unit of a currency.
const nanoPerUnit = 1_000_000_000

// decimals is how many digits a text may have behind its point.
const decimals = 9

// Currency is an ISO 4217 code such as "EUR": three capital letters.
type Currency string

// Valid reports whether c has the form of an ISO 4217 code.
func (c Currency) Valid() bool {
	if len(c) != 3 {
		return false
	}
	for _, r := range []byte(c) {
		if r < 'A' || r > 'Z' {
			return false
		}
	}
	return true
}

// Amount is a sum of money in nano-units of one currency. It may be negative.
//
// The zero value means "no money, of no currency in particular": it can be
// added to and compared with an amount of any currency. An amount without a
// currency that is not zero is a mistake, and every operation refuses it.
type Amount struct {
	Nano     int64    // in 1e-9 of a unit
	Currency Currency // empty only in the zero value
}

// Zero returns the amount 0 of currency c.
func Zero(c Currency) Amount { return Amount{Currency: c} }

// IsZero reports whether a is nothing, of whichever currency.
func (a Amount) IsZero() bool { return a.Nano == 0 }

// Sign returns -1, 0 or +1 as a is negative, zero or positive.
func (a Amount) Sign() int { return cmp.Compare(a.Nano, 0) }

// Add returns a+b. It fails with [ErrOverflow] or [ErrCurrency].
func (a Amount) Add(b Amount) (Amount, error) {
	c, err := currencyOf(a, b)
	if err != nil {
		return Amount{}, fmt.Errorf("add %v and %v: %w", a, b, err)
	}
	sum := a.Nano + b.Nano
	if (sum > a.Nano) != (b.Nano > 0) && b.Nano != 0 {
		return Amount{}, fmt.Errorf("add %v and %v: %w", a, b, ErrOverflow)
	}
	return Amount{Nano: sum, Currency: c}, nil
}

// Sub returns a-b. It fails with [ErrOverflow] or [ErrCurrency].
func (a Amount) Sub(b Amount) (Amount, error) {
	c, err := currencyOf(a, b)
	if err != nil {
		return Amount{}, fmt.Errorf("subtract %v from %v: %w", b, a, err)
	}
	diff := a.Nano - b.Nano
	if (diff < a.Nano) != (b.Nano > 0) && b.Nano != 0 {
		return Amount{}, fmt.Errorf("subtract %v from %v: %w", b, a, ErrOverflow)
	}
	return Amount{Nano: diff, Currency: c}, nil
}

// Mul returns a times n. It fails with [ErrOverflow].
func (a Amount) Mul(n int64) (Amount, error) {
	hi, lo := bits.Mul64(magnitude(a.Nano), magnitude(n))
	nano, ok := signed(lo, (a.Nano < 0) != (n < 0))
	if hi != 0 || !ok {
		return Amount{}, fmt.Errorf("multiply %v by %d: %w", a, n, ErrOverflow)
	}
	return Amount{Nano: nano, Currency: a.Currency}, nil
}

// Cmp returns -1, 0 or +1 as a is less than, equal to or more than b. Amounts
// of two currencies can't be compared: that is [ErrCurrency].
func (a Amount) Cmp(b Amount) (int, error) {
	if _, err := currencyOf(a, b); err != nil {
		return 0, fmt.Errorf("compare %v with %v: %w", a, b, err)
	}
	return cmp.Compare(a.Nano, b.Nano), nil
}

// Split cuts a into one part for each weight, in proportion to the weights, by
// the method of the largest remainder: the parts always add up to a, and none
// is further than one nano-unit from its exact share. Equal remainders go to
// the earlier part. Weights must not be negative and must not all be zero, and
// neither a nor any weight may be negative; the weights must sum into an int64.
func (a Amount) Split(weights ...int64) ([]Amount, error) {
	var total int64
	for _, w := range weights {
		if w < 0 || total > math.MaxInt64-w {
			return nil, fmt.Errorf("split %v by %v: weights must be positive and fit: %w", a, weights, ErrOverflow)
		}
		total += w
	}
	if total == 0 || a.Nano < 0 {
		return nil, fmt.Errorf("split %v by %v: needs a positive weight and an amount that is not negative", a, weights)
	}
	parts := make([]Amount, len(weights))
	rest := make([]uint64, len(weights))
	left := a.Nano
	for i, w := range weights {
		hi, lo := bits.Mul64(uint64(a.Nano), uint64(w))
		q, r := bits.Div64(hi, lo, uint64(total)) // hi < total, since w <= total and Nano < 2^63
		parts[i], rest[i] = Amount{Nano: int64(q), Currency: a.Currency}, r
		left -= int64(q)
	}
	for ; left > 0; left-- {
		best := 0
		for i := range rest {
			if rest[i] > rest[best] {
				best = i
			}
		}
		parts[best].Nano++
		rest[best] = 0
	}
	return parts, nil
}

// String writes a with at least two decimals and no zeros beyond them:
// "12.34 EUR", "0.000000001 EUR", "-5.00 EUR". The zero value is "0.00".
func (a Amount) String() string {
	n := decimalText(a.Nano)
	if a.Currency == "" {
		return n
	}
	return n + " " + string(a.Currency)
}

// Parse reads what [Amount.String] writes: an optional minus sign, digits, at
// most nine decimals, one space, a currency. Thousands separators, exponents
// and a plus sign are [ErrSyntax]; what does not fit is [ErrOverflow].
func Parse(s string) (Amount, error) {
	number, currency, ok := strings.Cut(s, " ")
	if !ok {
		return Amount{}, fmt.Errorf("%q: %w: write it like \"12.34 EUR\"", s, ErrSyntax)
	}
	c := Currency(currency)
	if !c.Valid() {
		return Amount{}, fmt.Errorf("%q: %w: %q is no currency code, write it like \"12.34 EUR\"", s, ErrCurrency, currency)
	}
	nano, err := parseDecimal(number)
	if err != nil {
		return Amount{}, fmt.Errorf("%q: %w", s, err)
	}
	return Amount{Nano: nano, Currency: c}, nil
}

// MarshalText writes a as [Amount.String] does, the zero value as "".
func (a Amount) MarshalText() ([]byte, error) {
	if a.Currency == "" {
		if a.Nano != 0 {
			return nil, fmt.Errorf("write amount %v: it has no currency: %w", a, ErrCurrency)
		}
		return nil, nil
	}
	return []byte(a.String()), nil
}

// UnmarshalText reads what [Amount.MarshalText] writes.
func (a *Amount) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*a = Amount{}
		return nil
	}
	parsed, err := Parse(string(text))
	if err != nil {
		return err
	}
	*a = parsed
	return nil
}

// currencyOf returns the currency of two amounts that may be taken together.
func currencyOf(a, b Amount) (Currency, error) {
	none := Amount{}
	switch {
	case a.Currency == "" && a != none, b.Currency == "" && b != none:
		return "", ErrCurrency
	case a.Currency == b.Currency, b == none:
		return a.Currency, nil
	case a == none:
		return b.Currency, nil
	}
	return "", ErrCurrency
}

// magnitude is |n|, also of the smallest int64.
func magnitude(n int64) uint64 {
	if n < 0 {
		return -uint64(n)
	}
	return uint64(n)
}

// signed is the opposite of magnitude; ok is false when the value does not fit.
func signed(m uint64, negative bool) (n int64, ok bool) {
	if negative {
		return -int64(m), m <= 1<<63
	}
	return int64(m), m <= math.MaxInt64
}

// decimalText writes nano-units as a decimal number of units.
func decimalText(nano int64) string {
	m := magnitude(nano)
	frac := strconv.FormatUint(m%nanoPerUnit+nanoPerUnit, 10)[1:] // nine digits
	frac = frac[:2] + strings.TrimRight(frac[2:], "0")
	sign := ""
	if nano < 0 {
		sign = "-"
	}
	return sign + strconv.FormatUint(m/nanoPerUnit, 10) + "." + frac
}

// parseDecimal reads a decimal number of units as nano-units.
func parseDecimal(s string) (int64, error) {
	digits, negative := strings.CutPrefix(s, "-")
	whole, frac, point := strings.Cut(digits, ".")
	if whole == "" || point && frac == "" || len(frac) > decimals || !allDigits(whole) || !allDigits(frac) {
		return 0, fmt.Errorf("%w: digits, a point and at most %d decimals are allowed, as in \"12.34\"", ErrSyntax, decimals)
	}
	units, err := strconv.ParseUint(whole, 10, 64)
	if err != nil {
		return 0, ErrOverflow
	}
	part, err := strconv.ParseUint(frac+strings.Repeat("0", decimals-len(frac)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrSyntax, err)
	}
	hi, lo := bits.Mul64(units, nanoPerUnit)
	m, carry := bits.Add64(lo, part, 0)
	n, ok := signed(m, negative)
	if hi != 0 || carry != 0 || !ok {
		return 0, ErrOverflow
	}
	return n, nil
}

func allDigits(s string) bool {
	return strings.Trim(s, "0123456789") == ""
}

package focus

import (
	"math/big"
	"strconv"
	"strings"
)

const (
	nano       = 1_000_000_000
	pico       = 1_000_000_000_000
	maxSeconds = 9_000_000_000 // what an int64 holds in nanoseconds
)

// hours is a time in 1e-12 hours, rounded half up.
func hours(seconds int64) int64 {
	whole, rest := seconds/3600, seconds%3600
	return whole*pico + (rest*pico+1800)/3600
}

// product writes nano-units times 1e-12, exactly.
func product(nanos, picos int64) string {
	n := new(big.Int).Mul(big.NewInt(nanos), big.NewInt(picos))
	return point(pad(n.String(), 22), 21)
}

// fixed writes n units of 10^-places; n may be negative.
func fixed(n int64, places int) string {
	digits, negative := strings.CutPrefix(strconv.FormatInt(n, 10), "-")
	text := point(pad(digits, places+1), places)
	if negative {
		return "-" + text
	}
	return text
}

func pad(digits string, to int) string {
	return strings.Repeat("0", max(0, to-len(digits))) + digits
}

// point sets the decimal point and drops zeros in front and behind.
func point(digits string, places int) string {
	whole, part := digits[:len(digits)-places], strings.TrimRight(digits[len(digits)-places:], "0")
	whole = pad(strings.TrimLeft(whole, "0"), 1)
	if part == "" {
		return whole
	}
	return whole + "." + part
}

package quota

import (
	"cmp"
	"slices"

	"spillway.dev/spillway/quota/money"
)

// roundTogether rounds parts to multiples of unit, so that they add up to their exact sum rounded once, half up (largest remainder;
// equal ones go to the earlier part). Rounding each alone would not.
func roundTogether(unit int64, parts []int64) []int64 {
	rounded := make([]int64, len(parts))
	order := make([]int, len(parts))
	var left int64 // what the cut off parts add up to
	for i, n := range parts {
		rounded[i], order[i] = n-beyond(n, unit), i
		left += beyond(n, unit)
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(beyond(parts[b], unit), beyond(parts[a], unit)) })
	for _, i := range order[:(left+unit/2)/unit] {
		rounded[i] += unit
	}
	return rounded
}

// beyond is what n has beyond the multiple of unit below it.
func beyond(n, unit int64) int64 { return (n%unit + unit) % unit }

// cent is a hundredth of a unit of a currency.
const cent = 10_000_000

// roundCosts sets Rounded of all costs, each currency by itself.
func roundCosts(costs []*Cost) {
	byCurrency := make(map[money.Currency][]*Cost)
	for _, c := range costs {
		byCurrency[c.Exact.Currency] = append(byCurrency[c.Exact.Currency], c)
	}
	for currency, same := range byCurrency {
		exact := make([]int64, len(same))
		for i, c := range same {
			exact[i] = c.Exact.Nano
		}
		for i, nano := range roundTogether(cent, exact) {
			same[i].Rounded = money.Amount{Nano: nano, Currency: currency}
		}
	}
}

// hundredth is a hundredth of a GPU-hour in share-seconds.
const hundredth = 3600 * money.Whole / 100

// roundTimes sets Hundredths of all times.
func roundTimes(times []*GPUTime) {
	exact := make([]int64, len(times))
	for i, t := range times {
		exact[i] = t.ShareSeconds
	}
	for i, n := range roundTogether(hundredth, exact) {
		times[i].Hundredths = n / hundredth
	}
}

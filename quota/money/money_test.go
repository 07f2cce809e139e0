package money_test

import (
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"spillway.dev/spillway/quota/money"
)

func eur(nano int64) money.Amount { return money.Amount{Nano: nano, Currency: "EUR"} }

// An amount without its unit is none. cases: C-64 bifrost#6937
func TestParse(t *testing.T) {
	tests := map[string]struct {
		text string
		want money.Amount
		err  error
	}{
		"cents":                               {text: "12.34 EUR", want: eur(12_340_000_000)},
		"a whole number":                      {text: "7 USD", want: money.Amount{Nano: 7_000_000_000, Currency: "USD"}},
		"one nano-unit":                       {text: "0.000000001 EUR", want: eur(1)},
		"a negative amount":                   {text: "-0.50 EUR", want: eur(-500_000_000)},
		"the largest amount":                  {text: "9223372036.854775807 EUR", want: eur(math.MaxInt64)},
		"the smallest amount":                 {text: "-9223372036.854775808 EUR", want: eur(math.MinInt64)},
		"one nano-unit too much":              {text: "9223372036.854775808 EUR", err: money.ErrOverflow},
		"far too much":                        {text: "99999999999999999999999 EUR", err: money.ErrOverflow},
		"too much for the units alone":        {text: "18446744074 EUR", err: money.ErrOverflow},
		"ten decimals would have to be cut":   {text: "0.0000000001 EUR", err: money.ErrSyntax},
		"no currency":                         {text: "12.34", err: money.ErrSyntax},
		"a symbol is no currency":             {text: "12.34 €", err: money.ErrCurrency},
		"small letters are no currency":       {text: "12.34 eur", err: money.ErrCurrency},
		"a comma is no point":                 {text: "12,34 EUR", err: money.ErrSyntax},
		"no digit before the point":           {text: ".5 EUR", err: money.ErrSyntax},
		"no digit behind the point":           {text: "5. EUR", err: money.ErrSyntax},
		"a plus sign":                         {text: "+5 EUR", err: money.ErrSyntax},
		"an exponent":                         {text: "1e3 EUR", err: money.ErrSyntax},
		"a sign inside":                       {text: "1.-5 EUR", err: money.ErrSyntax},
		"two spaces":                          {text: "1  EUR", err: money.ErrCurrency},
		"nothing":                             {text: "", err: money.ErrSyntax},
		"not a number":                        {text: "NaN EUR", err: money.ErrSyntax},
		"digits of other scripts don't count": {text: "١ EUR", err: money.ErrSyntax},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := money.Parse(tt.text)
			if !errors.Is(err, tt.err) || got != tt.want {
				t.Errorf("Parse(%q) = %v, %v; want %v, %v", tt.text, got, err, tt.want, tt.err)
			}
		})
	}
}

func TestString(t *testing.T) {
	tests := map[string]struct {
		amount money.Amount
		want   string
	}{
		"two decimals at least":      {eur(5_000_000_000), "5.00 EUR"},
		"no zeros beyond them":       {eur(5_120_300_000), "5.1203 EUR"},
		"all nine where needed":      {eur(-1), "-0.000000001 EUR"},
		"the zero value":             {money.Amount{}, "0.00"},
		"zero of a currency":         {money.Zero("PLN"), "0.00 PLN"},
		"the smallest amount of all": {eur(math.MinInt64), "-9223372036.854775808 EUR"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tt.amount.String(); got != tt.want {
				t.Errorf("String() = %q, want %q", got, tt.want)
			}
		})
	}
}

// What is written is read back as the same, as text and as JSON.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := money.Amount{Nano: rapid.Int64().Draw(t, "nano"), Currency: money.Currency(rapid.StringMatching(`[A-Z]{3}`).Draw(t, "currency"))}
		back, err := money.Parse(a.String())
		if err != nil || back != a {
			t.Fatalf("Parse(%q) = %v, %v", a.String(), back, err)
		}
		r := money.Rate{NanoPerHour: rapid.Int64Range(1, math.MaxInt64).Draw(t, "rate"), Currency: a.Currency}
		type pair struct {
			A money.Amount
			R money.Rate
			Z money.Amount `json:"z,omitzero"`
		}
		text, err := json.Marshal(pair{A: a, R: r})
		if err != nil {
			t.Fatal(err)
		}
		var got pair
		if err := json.Unmarshal(text, &got); err != nil || got != (pair{A: a, R: r}) {
			t.Fatalf("%s was read back as %v, %v", text, got, err)
		}
		if strings.Contains(string(text), `"z"`) {
			t.Fatalf("%s writes an amount that is not there", text)
		}
	})
}

// No text makes Parse panic, and what it accepts it writes back equal in value.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"12.34 EUR", "-9223372036.854775808 EUR", "0.1 USD", " EUR", "1 EUR "} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := money.Parse(s)
		if err != nil {
			return
		}
		if back, err := money.Parse(a.String()); err != nil || back != a {
			t.Errorf("Parse(%q) = %v, but that is read back as %v, %v", s, a, back, err)
		}
	})
}

// Add, Sub, Mul and Cmp agree with unbounded integers, or say overflow.
// cases: C-4 kubernetes-sigs/kueue#11139, #11137, #11182, #14112, #14108
func TestArithmeticNeverWraps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := eur(edgy().Draw(t, "a")), eur(edgy().Draw(t, "b"))
		x, y := big.NewInt(a.Nano), big.NewInt(b.Nano)
		agree(t, "Add", new(big.Int).Add(x, y))(a.Add(b))
		agree(t, "Sub", new(big.Int).Sub(x, y))(a.Sub(b))
		agree(t, "Mul", new(big.Int).Mul(x, y))(a.Mul(b.Nano))
		if got, err := a.Cmp(b); err != nil || got != x.Cmp(y) {
			t.Fatalf("Cmp(%v, %v) = %v, %v", a, b, got, err)
		}
	})
}

// edgy draws numbers of all sizes, with the ends of the range among them.
func edgy() *rapid.Generator[int64] {
	return rapid.OneOf(rapid.Int64(), rapid.Int64Range(-1000, 1000), rapid.SampledFrom([]int64{
		math.MaxInt64, math.MinInt64, math.MaxInt64 - 1, math.MinInt64 + 1, 1 << 32, -1 << 32, 3_037_000_500,
	}))
}

func agree(t *rapid.T, op string, want *big.Int) func(money.Amount, error) {
	return func(got money.Amount, err error) {
		switch {
		case want.IsInt64() && (err != nil || got.Nano != want.Int64()):
			t.Fatalf("%s = %v, %v; want %v", op, got, err, want)
		case !want.IsInt64() && !errors.Is(err, money.ErrOverflow):
			t.Fatalf("%s = %v, %v; want overflow, the true result is %v", op, got, err, want)
		}
	}
}

// cases: C-61 kubecost/docs#1128, #923
func TestCurrenciesNeverMix(t *testing.T) {
	usd, none := money.Amount{Nano: 1, Currency: "USD"}, money.Amount{Nano: 1}
	for name, f := range map[string]func() error{
		"add":                          func() error { _, err := eur(1).Add(usd); return err },
		"subtract":                     func() error { _, err := eur(1).Sub(usd); return err },
		"compare":                      func() error { _, err := eur(1).Cmp(usd); return err },
		"add zero dollars":             func() error { _, err := eur(1).Add(money.Zero("USD")); return err },
		"add an amount of no currency": func() error { _, err := eur(1).Add(none); return err },
		"add to it the zero value":     func() error { _, err := none.Add(money.Amount{}); return err },
		"write it as text":             func() error { _, err := none.MarshalText(); return err },
	} {
		t.Run(name, func(t *testing.T) {
			if err := f(); !errors.Is(err, money.ErrCurrency) {
				t.Errorf("error is %v, want ErrCurrency", err)
			}
		})
	}
	if got, err := (money.Amount{}).Add(eur(5)); err != nil || got != eur(5) {
		t.Errorf("the zero value plus 5 is %v, %v", got, err)
	}
}

func TestRateFor(t *testing.T) {
	rate, err := money.ParseRate("2.10 EUR/h")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		rate           money.Rate
		seconds, share int64
		want           string
		err            error
	}{
		"one hour of the whole thing":          {rate, 3600, money.Whole, "2.10 EUR", nil},
		"one second is rounded up":             {rate, 1, money.Whole, "0.000583334 EUR", nil},
		"a month with 745 hours":               {rate, 745 * 3600, money.Whole, "1564.50 EUR", nil},
		"an eighth of a GPU":                   {rate, 3600, 105, "0.2625 EUR", nil},
		"eight GPUs":                           {rate, 3600, 8 * money.Whole, "16.80 EUR", nil},
		"no time costs nothing":                {rate, 0, money.Whole, "0.00 EUR", nil},
		"an unknown price is not free":         {money.Rate{}, 3600, money.Whole, "0.00", money.ErrUnknownPrice},
		"an unknown price with a currency too": {money.Rate{Currency: "EUR"}, 0, 0, "0.00", money.ErrUnknownPrice},
		"more than fits":                       {rate, math.MaxInt64, math.MaxInt64, "0.00", money.ErrOverflow},
		"more than fits by a little":           {money.Rate{NanoPerHour: math.MaxInt64, Currency: "EUR"}, 3600, 841, "0.00", money.ErrOverflow},
		"more than fits by powers of two":      {money.Rate{NanoPerHour: 1 << 62, Currency: "EUR"}, 1 << 62, 1 << 62, "0.00", money.ErrOverflow},
		"the largest that fits":                {money.Rate{NanoPerHour: math.MaxInt64, Currency: "EUR"}, 3600, 840, "9223372036.854775807 EUR", nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := tt.rate.For(tt.seconds, tt.share)
			if !errors.Is(err, tt.err) || got.String() != tt.want {
				t.Errorf("For(%d, %d) = %v, %v; want %v, %v", tt.seconds, tt.share, got, err, tt.want, tt.err)
			}
		})
	}
	for name, bad := range map[string]func() (money.Amount, error){
		"negative seconds": func() (money.Amount, error) { return rate.For(-1, 840) },
		"negative share":   func() (money.Amount, error) { return rate.For(1, -840) },
		"negative price":   func() (money.Amount, error) { return money.Rate{NanoPerHour: -1, Currency: "EUR"}.For(1, 1) },
		"no currency":      func() (money.Amount, error) { return money.Rate{NanoPerHour: 1}.For(1, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := bad(); err == nil {
				t.Errorf("got %v, want an error", got)
			}
		})
	}
}

// For is the exact quotient rounded up, or overflow; and cutting a run into
// pieces costs at least as much as the whole and less than one nano-unit a cut more.
func TestRateForIsExactAndSplits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := money.Rate{NanoPerHour: rapid.Int64Range(1, math.MaxInt64).Draw(t, "rate"), Currency: "EUR"}
		share := rapid.Int64Range(0, 1<<40).Draw(t, "share")
		var whole int64
		pieces := rapid.SliceOfN(rapid.Int64Range(0, 1<<40), 1, 20).Draw(t, "pieces")
		for _, p := range pieces {
			whole += p
		}
		n := new(big.Int).Mul(big.NewInt(r.NanoPerHour), new(big.Int).Mul(big.NewInt(whole), big.NewInt(share)))
		want, rest := new(big.Int).QuoRem(n, big.NewInt(3600*840), new(big.Int))
		if rest.Sign() > 0 {
			want.Add(want, big.NewInt(1))
		}
		total, err := r.For(whole, share)
		agree(t, "For", want)(total, err)
		if err != nil {
			return
		}
		sum := money.Zero("EUR")
		for _, p := range pieces {
			part, err := r.For(p, share)
			if err != nil {
				t.Fatal(err)
			}
			if sum, err = sum.Add(part); err != nil {
				return // rounding up can pass the range at its very end
			}
		}
		if d := sum.Nano - total.Nano; d < 0 || d > int64(len(pieces)-1) {
			t.Fatalf("%d pieces cost %v, the whole %v", len(pieces), sum, total)
		}
	})
}

// cases: C-51 opencost/opencost#3828, Project-HAMi/HAMi#3073
func TestFourQuarterSharesAreOneGPU(t *testing.T) {
	rate := money.Rate{NanoPerHour: 2_100_000_000, Currency: "EUR"}
	quarter, err := rate.For(3600, 210)
	if err != nil {
		t.Fatal(err)
	}
	four, err := quarter.Mul(4)
	if err != nil {
		t.Fatal(err)
	}
	if whole, err := rate.For(3600, money.Whole); err != nil || four != whole {
		t.Errorf("four quarters cost %v, a whole GPU %v, %v", four, whole, err)
	}
}

// cases: H-25 candelahq/candela#645, backblaze-labs/genblaze#63
func TestTenTimesTenCentsAreOneEuro(t *testing.T) {
	ten, err := money.Parse("0.10 EUR")
	if err != nil {
		t.Fatal(err)
	}
	sum := money.Amount{}
	for range 10 {
		if sum, err = sum.Add(ten); err != nil {
			t.Fatal(err)
		}
	}
	if sum.String() != "1.00 EUR" {
		t.Errorf("ten times 0.10 EUR is %v", sum)
	}
}

// The parts of a split add up to the whole and each is within a nano-unit of
// its share. cases: C-62 useautumn/autumn#3407
func TestSplitLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := eur(rapid.Int64Range(0, math.MaxInt64).Draw(t, "amount"))
		weights := rapid.SliceOfN(rapid.Int64Range(0, math.MaxInt64/8), 1, 8).Draw(t, "weights")
		total := new(big.Int)
		for _, w := range weights {
			total.Add(total, big.NewInt(w))
		}
		parts, err := a.Split(weights...)
		if total.Sign() == 0 {
			if err == nil {
				t.Fatalf("Split by %v = %v, want an error", weights, parts)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		var sum int64
		for i, p := range parts {
			sum += p.Nano
			exact := new(big.Int).Mul(big.NewInt(a.Nano), big.NewInt(weights[i]))
			d := exact.Sub(exact, new(big.Int).Mul(big.NewInt(p.Nano), total))
			if d.CmpAbs(total) >= 0 {
				t.Fatalf("part %d of %v by %v is %v", i, a, weights, p)
			}
		}
		if sum != a.Nano {
			t.Fatalf("the parts %v of %v add up to %d", parts, a, sum)
		}
	})
}

func TestSplitRefuses(t *testing.T) {
	for name, f := range map[string]func() ([]money.Amount, error){
		"no weights":            func() ([]money.Amount, error) { return eur(1).Split() },
		"a negative weight":     func() ([]money.Amount, error) { return eur(1).Split(2, -1) },
		"a negative amount":     func() ([]money.Amount, error) { return eur(-1).Split(1) },
		"weights that overflow": func() ([]money.Amount, error) { return eur(1).Split(math.MaxInt64, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := f(); err == nil {
				t.Errorf("got %v, want an error", got)
			}
		})
	}
}

func TestParseRateRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"a free offer": "0.00 EUR", "a negative price": "-1 EUR/h", "a price per month": "5 EUR/m", "nothing": "/h",
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := money.ParseRate(text); err == nil {
				t.Errorf("ParseRate(%q) = %v, want an error", text, got)
			}
		})
	}
}

package focus_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/focus"
	"spillway.dev/spillway/quota/money"
)

func at(text string) time.Time {
	t, err := time.Parse("2006-01-02 15:04:05Z", text+"Z")
	if err != nil {
		panic(err)
	}
	return t
}

func eur(nano int64) money.Amount { return money.Amount{Nano: nano, Currency: "EUR"} }

// settled is a burst of one machine at 2.90 EUR/h that cost what it should.
func settled(uid, from, until string, change ...func(*quota.Receipt)) quota.Receipt {
	price := money.Rate{NanoPerHour: 2_900_000_000, Currency: "EUR"}
	start, end := at(from), at(until)
	seconds := int64(end.Sub(start) / time.Second)
	actual, err := price.For(seconds, money.Whole)
	if err != nil {
		panic(err)
	}
	r := quota.Receipt{Kind: quota.KindSettle, Seq: 7, Hash: "c0ffee", Account: quota.Account{
		Reservation: quota.Reservation{
			Burst: uid, Tenant: "t-7f31", Project: "vision", Provider: "ovh-gra", Namespace: "team", Owner: "job-1", Offer: "l40s-90", Price: price,
		},
		State: quota.Settled, Spent: actual, Waived: eur(0), Overrun: eur(0), SettledAt: end.Add(time.Minute),
		Settlement: quota.Settlement{Burst: uid, Actual: actual, MachineStart: start, MachineEnd: end, Seconds: seconds, Cause: "Succeeded"},
	}}
	for _, c := range change {
		c(&r)
	}
	return r
}

func fault(r *quota.Receipt) {
	r.Spent, r.Waived, r.Settlement.Cause = eur(0), r.Spent, quota.CauseProviderFault
}

func export(t testing.TB, v focus.Version, view focus.View, month string, accounts ...quota.Receipt) string {
	t.Helper()
	p, err := quota.Month("", month)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	err = focus.Write(&b, focus.Export{
		Version: v, View: view, Operator: "Example GPU Platform", Month: p, Accounts: accounts,
		Usage: []quota.UsageHour{
			{Hour: at("2026-11-02 10:00:00"), Burst: "uid-1", GPUModel: "l40s", ShareSeconds: 2*2400*money.Whole + 1},
			{Hour: at("2026-11-02 10:00:00"), Burst: "uid-1", ShareSeconds: 1},
			{Hour: at("2026-11-02 11:00:00"), Burst: "uid-1", ShareSeconds: 7},
			{Hour: at("2026-11-02 10:00:00"), ShareSeconds: 9},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// some is one of each: a plain burst, one over the month's end, a provider's
// fault, an overrun, one without a price, one that is open, one that cost nothing.
func some() []quota.Receipt {
	return []quota.Receipt{
		settled("plain", "2026-11-02 10:07:30", "2026-11-02 12:52:30"),
		settled("month end", "2026-10-31 20:10:00", "2026-11-01 01:00:07"),
		settled("fault", "2026-11-03 09:00:00", "2026-11-03 09:20:00", fault),
		settled("overrun", "2026-11-04 09:00:00", "2026-11-04 11:00:00", func(r *quota.Receipt) {
			r.Spent, r.Overrun = eur(5_000_000_000), eur(800_000_000)
		}),
		settled("no price", "2026-11-05 09:00:00", "2026-11-05 09:30:00", func(r *quota.Receipt) { r.Reservation.Price, r.Reservation.Offer = money.Rate{}, "" }),
		settled("open", "2026-11-06 09:00:00", "2026-11-06 09:30:00", func(r *quota.Receipt) { r.State = quota.Reserved }),
		settled("nothing", "2026-11-07 09:00:00", "2026-11-07 09:30:00", func(r *quota.Receipt) { r.Spent = eur(0) }),
	}
}

// Every row of every version and view keeps the rules of the specification.
func TestExportsKeepTheRules(t *testing.T) {
	for _, v := range []focus.Version{focus.V12, focus.V14} {
		for _, view := range []focus.View{focus.ViewTenant, focus.ViewProvider} {
			t.Run(string(v)+" "+string(view), func(t *testing.T) {
				d := read(t, v, export(t, v, view, "2026-11", some()...))
				for _, p := range d.problems() {
					t.Error(p)
				}
				if len(d.rows) < 10 {
					t.Errorf("%d rows", len(d.rows))
				}
			})
		}
	}
}

// A tenant's rows are what the tenant is charged, a provider's what it bills;
// no row is in both, and nobody can add the two up unseen. cases: C-30
// MicrosoftDocs/azure-docs#54463
func TestTheTwoViewsNeverMix(t *testing.T) {
	sums := func(view focus.View) map[string]*big.Rat {
		sum := make(map[string]*big.Rat)
		for _, row := range read(t, focus.V14, export(t, focus.V14, view, "2026-11", some()...)).rows {
			if row["x_View"] != string(view) {
				t.Errorf("a row of view %q in an export of view %q", row["x_View"], view)
			}
			issuer := map[focus.View]string{focus.ViewTenant: "Example GPU Platform", focus.ViewProvider: "ovh-gra"}[view]
			payer := map[focus.View]string{focus.ViewTenant: "t-7f31", focus.ViewProvider: "ovh-gra"}[view]
			if row["InvoiceIssuerName"] != issuer || row["ServiceProviderName"] != issuer || row["BillingAccountId"] != payer || row["HostProviderName"] != "ovh-gra" {
				t.Errorf("%q charges %q for what runs at %q", row["InvoiceIssuerName"], row["BillingAccountId"], row["HostProviderName"])
			}
			if sum[row["ResourceId"]] == nil {
				sum[row["ResourceId"]] = new(big.Rat)
			}
			cost, _ := new(big.Rat).SetString(row["BilledCost"])
			sum[row["ResourceId"]].Add(sum[row["ResourceId"]], cost)
		}
		return sum
	}
	tenant, provider := sums(focus.ViewTenant), sums(focus.ViewProvider)
	for uid, want := range map[string][2]string{
		"plain": {"7.975", "7.975"}, "fault": {"0", "0.966666667"}, "overrun": {"5", "5.8"}, "no price": {"1.45", "1.45"},
	} {
		if got := [2]string{text(tenant[uid]), text(provider[uid])}; got != want {
			t.Errorf("burst %s costs %v, want %v (tenant, provider)", uid, got, want)
		}
	}
	if len(tenant) != 5 || len(provider) != 5 {
		t.Errorf("%d and %d bursts, want 5: open ones and those without cost have no rows", len(tenant), len(provider))
	}
}

func text(r *big.Rat) string {
	return strings.TrimRight(strings.TrimRight(r.FloatString(12), "0"), ".")
}

// One row, column by column.
func TestARow(t *testing.T) {
	d := read(t, focus.V14, export(t, focus.V14, focus.ViewTenant, "2026-11", settled("uid-1", "2026-11-02 10:07:30", "2026-11-02 10:52:30")))
	if len(d.rows) != 1 {
		t.Fatalf("%d rows, want 1", len(d.rows))
	}
	got := make(map[string]string)
	for name, value := range d.rows[0] {
		if value != "" {
			got[name] = value
		}
	}
	want := map[string]string{
		"BilledCost": "2.175", "BillingAccountId": "t-7f31", "BillingAccountType": "Tenant", "BillingCurrency": "EUR",
		"BillingPeriodStart": "2026-10-31T23:00:00Z", "BillingPeriodEnd": "2026-11-30T23:00:00Z",
		"ChargeCategory": "Usage", "ChargeDescription": "l40s-90 at ovh-gra, burst uid-1", "ChargeFrequency": "Usage-Based",
		"ChargePeriodStart": "2026-11-02T10:07:30Z", "ChargePeriodEnd": "2026-11-02T10:52:30Z",
		"ConsumedQuantity": "2700", "ConsumedUnit": "Machine-Seconds", "ContractedCost": "2.175", "ContractedUnitPrice": "2.9",
		"EffectiveCost": "2.175", "HostProviderName": "ovh-gra", "InvoiceIssuerName": "Example GPU Platform", "ListCost": "2.175", "ListUnitPrice": "2.9",
		"PricingCategory": "Standard", "PricingCurrency": "EUR", "PricingCurrencyContractedUnitPrice": "2.9", "PricingCurrencyEffectiveCost": "2.175",
		"PricingCurrencyListUnitPrice": "2.9", "PricingQuantity": "0.75", "PricingUnit": "Machine-Hours",
		"ResourceId": "uid-1", "ResourceType": "Burst", "ServiceCategory": "Compute", "ServiceName": "GPU Burst",
		"ServiceProviderName": "Example GPU Platform", "ServiceSubcategory": "Virtual Machines",
		"SkuId": "ovh-gra/l40s-90", "SkuMeter": "Machine Time", "SkuPriceDetails": `{"InstanceType":"l40s-90"}`, "SkuPriceId": "ovh-gra/l40s-90",
		"SubAccountId": "vision", "SubAccountType": "Project",
		"x_BurstCause": "Succeeded", "x_BurstNamespace": "team", "x_BurstUid": "uid-1", "x_EntryHash": "c0ffee", "x_EntrySeq": "7", "x_GpuSeconds": "4800.002380952", "x_OwnerUid": "job-1",
		"x_ProjectId": "vision", "x_TenantId": "t-7f31", "x_View": "tenant",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Whatever a burst cost and however long it ran: the rows of all months add up
// to what the ledger posted, to the nano-unit, every product is exact, and
// product and posted cost differ by rounding only. cases: C-62 useautumn/autumn#3407
func TestRowsAddUpToTheLedger(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		price := money.Rate{NanoPerHour: rapid.Int64Range(1, 99_000_000_000).Draw(r, "price"), Currency: "EUR"}
		start := at("2026-10-30 00:00:00").Add(time.Duration(rapid.Int64Range(0, 3*24*3600).Draw(r, "start")) * time.Second)
		length := rapid.Int64Range(1, 3*24*3600).Draw(r, "seconds")
		machines := rapid.Int64Range(1, 8).Draw(r, "machines")
		actual, err := price.For(length*machines, money.Whole)
		if err != nil {
			r.Fatal(err)
		}
		named, slack := rapid.Bool().Draw(r, "named"), int64(2)
		if named {
			slack += machines
		}
		overrun := rapid.Int64Range(0, actual.Nano).Draw(r, "overrun")
		a := settled("b", "2026-11-01 00:00:00", "2026-11-01 01:00:00", func(x *quota.Receipt) {
			x.Reservation.Price, x.Spent, x.Overrun = price, eur(actual.Nano-overrun), eur(overrun)
			x.Settlement = quota.Settlement{Actual: actual, MachineStart: start, MachineEnd: start.Add(time.Duration(length) * time.Second), Seconds: length * machines}
			for i := range machines {
				if named {
					one, _ := price.For(length, money.Whole)
					x.Settlement.Machines = append(x.Settlement.Machines, quota.MachineBill{ID: fmt.Sprint("i-", i), Seconds: length, Cost: one})
				}
			}
		})
		for view, want := range map[focus.View]int64{focus.ViewTenant: a.Spent.Nano, focus.ViewProvider: actual.Nano} {
			sum, listed := new(big.Rat), new(big.Rat)
			for _, month := range []string{"2026-10", "2026-11"} {
				d := read(t, focus.V14, export(t, focus.V14, view, month, a))
				if p := d.problems(); len(p) > 0 {
					r.Fatal(p)
				}
				for _, row := range d.rows {
					cost, _ := new(big.Rat).SetString(row["BilledCost"])
					list, _ := new(big.Rat).SetString(row["ListCost"])
					sum.Add(sum, cost)
					listed.Add(listed, list)
					if off := new(big.Rat).Sub(cost, list); off.Abs(off).Cmp(big.NewRat(slack, 1_000_000_000)) > 0 {
						r.Fatalf("a row is posted with %s and listed with %s", row["BilledCost"], row["ListCost"])
					}
				}
			}
			if posted := big.NewRat(want, 1_000_000_000); sum.Cmp(posted) != 0 {
				r.Fatalf("the rows of view %s add up to %s, the ledger posted %s", view, sum.FloatString(12), posted.FloatString(12))
			}
			if off := new(big.Rat).Sub(sum, listed); off.Abs(off).Cmp(big.NewRat(2, 1_000_000_000)) > 0 {
				r.Fatalf("posted %s, listed %s", sum.FloatString(12), listed.FloatString(12))
			}
		}
	})
}

// Each machine has a row an hour, with its part of what was posted; what the
// operator takes over is the burst's.
func TestMachinesHaveRowsOfTheirOwn(t *testing.T) {
	two := settled("two", "2026-11-02 10:00:00", "2026-11-02 12:00:00", func(r *quota.Receipt) {
		s := &r.Settlement
		s.Seconds = 3 * 3600
		s.Machines = []quota.MachineBill{
			{ID: "i-1", Start: s.MachineStart, End: s.MachineEnd, Seconds: 2 * 3600, Cost: eur(5_800_000_000)},
			{ID: "i-2", Start: s.MachineStart, End: s.MachineStart.Add(time.Hour), Seconds: 3600, Cost: eur(2_900_000_000)},
		}
		r.Spent, r.Overrun = eur(8_000_000_000), eur(700_000_000)
	})
	d := read(t, focus.V14, export(t, focus.V14, focus.ViewTenant, "2026-11", two))
	for _, p := range d.problems() {
		t.Error(p)
	}
	var got []string
	for _, row := range d.rows {
		got = append(got, strings.Join([]string{row["ResourceType"], row["ResourceId"], row["x_BurstUid"], row["ChargeCategory"], row["BilledCost"], row["PricingQuantity"]}, " "))
	}
	want := []string{
		"Machine i-1 two Usage 2.9 1", "Machine i-2 two Usage 1.45 0.5", "Burst two two Credit -0.35 ",
		"Machine i-1 two Usage 2.9 1", "Machine i-2 two Usage 1.45 0.5", "Burst two two Credit -0.35 ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// What has no length is charged all the same: a provider's minimum for a
// machine that was there for less than a second, and cost without a machine.
func TestCostWithoutTimeHasARow(t *testing.T) {
	short := settled("short", "2026-11-02 10:00:00", "2026-11-02 10:01:00", func(r *quota.Receipt) {
		r.Settlement.MachineStart = r.Settlement.MachineStart.Add(100 * time.Millisecond)
		r.Settlement.MachineEnd = r.Settlement.MachineStart.Add(time.Millisecond)
	})
	none := settled("none", "2026-11-02 10:00:00", "2026-11-02 10:01:00", func(r *quota.Receipt) {
		r.Settlement.MachineStart, r.Settlement.MachineEnd, r.Settlement.Seconds = time.Time{}, time.Time{}, 0
		r.SettledAt = at("2026-11-03 12:59:59")
	})
	d := read(t, focus.V14, export(t, focus.V14, focus.ViewTenant, "2026-11", short, none))
	for _, p := range d.problems() {
		t.Error(p)
	}
	var got []string
	for _, row := range d.rows {
		got = append(got, strings.Join([]string{row["ResourceId"], row["ChargeCategory"], row["ChargePeriodStart"], row["ChargePeriodEnd"], row["BilledCost"], row["PricingQuantity"]}, " "))
	}
	want := []string{
		"short Usage 2026-11-02T10:00:01Z 2026-11-02T10:00:02Z 0.048333334 0.016666666667",
		"none Adjustment 2026-11-03T12:59:59Z 2026-11-03T13:00:00Z 0.048333334 ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// The schema describes the columns of its version, in their order, and no value
// is longer or finer than it says.
func TestSchemaDescribesTheData(t *testing.T) {
	for _, v := range []focus.Version{focus.V12, focus.V14} {
		t.Run(string(v), func(t *testing.T) {
			var b strings.Builder
			if err := focus.WriteSchema(&b, v); err != nil {
				t.Fatal(err)
			}
			var schema struct {
				FocusVersion     string
				ColumnDefinition []struct {
					ColumnName, DataType                           string
					NumericPrecision, NumberScale, StringMaxLength int
				}
			}
			if err := json.Unmarshal([]byte(b.String()), &schema); err != nil || schema.FocusVersion != string(v) {
				t.Fatalf("%v, version %q", err, schema.FocusVersion)
			}
			d := read(t, v, export(t, v, focus.ViewTenant, "2026-11", some()...))
			if len(schema.ColumnDefinition) != len(d.names) {
				t.Fatalf("%d columns are described, the data has %d", len(schema.ColumnDefinition), len(d.names))
			}
			for i, c := range schema.ColumnDefinition {
				if c.ColumnName != d.names[i] {
					t.Errorf("column %d is described as %s and is %s", i, c.ColumnName, d.names[i])
				}
				for _, row := range d.rows {
					whole, part, _ := strings.Cut(strings.TrimPrefix(row[c.ColumnName], "-"), ".")
					if c.DataType == "DECIMAL" && (len(part) > c.NumberScale || len(whole)+c.NumberScale > c.NumericPrecision) || c.DataType == "STRING" && len(row[c.ColumnName]) > c.StringMaxLength {
						t.Errorf("%s is %q, described as %+v", c.ColumnName, row[c.ColumnName], c)
					}
				}
			}
		})
	}
	if err := focus.WriteSchema(io.Discard, "1.5"); !errors.Is(err, focus.ErrUnknown) {
		t.Errorf("version 1.5: %v", err)
	}
}

// What can't be written is refused before the first byte.
func TestWhatCantBeExported(t *testing.T) {
	november, _ := quota.Month("", "2026-11")
	halves, _ := quota.Month("Asia/Kolkata", "2026-11")
	good := focus.Export{Version: focus.V14, View: focus.ViewTenant, Operator: "x", Month: november}
	for name, tt := range map[string]struct {
		change func(*focus.Export)
		want   error
	}{
		"a version": {func(x *focus.Export) { x.Version = "1.5" }, focus.ErrUnknown},
		"a view":    {func(x *focus.Export) { x.View = "both" }, focus.ErrUnknown},
		"nobody":    {func(x *focus.Export) { x.Operator = "" }, quota.ErrInvalid},
		"halves":    {func(x *focus.Export) { x.Month = halves }, quota.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			x := good
			tt.change(&x)
			var b strings.Builder
			if err := focus.Write(&b, x); !errors.Is(err, tt.want) || b.Len() > 0 {
				t.Errorf("%v with %d bytes, want %v with none", err, b.Len(), tt.want)
			}
		})
	}
}

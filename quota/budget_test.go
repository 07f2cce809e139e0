package quota_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

func at(text string) time.Time {
	t, err := time.Parse("2006-01-02 15:04:05Z", text+":00Z")
	if err != nil {
		panic(err)
	}
	return t
}

func eur(text string) money.Amount {
	a, err := money.Parse(text + " EUR")
	if err != nil {
		panic(err)
	}
	return a
}

// cases: C-65 home-assistant/core#114721, C-67 getlago/lago-api#879, C-68 formancehq/ledger#1398
func TestPeriods(t *testing.T) {
	month := quota.Budget{ID: "b", Scope: quota.ScopeGlobal, Window: quota.WindowMonth, Limit: eur("1")}
	day := month
	day.Window = quota.WindowDay
	in := func(b quota.Budget, zone string) quota.Budget { b.Zone = zone; return b }
	fixed := quota.Budget{
		ID: "b", Scope: quota.ScopeGlobal, Window: quota.WindowFixed, Limit: eur("1"),
		Start: at("2026-01-01 00:00"), End: at("2026-07-01 00:00"),
	}
	tests := map[string]struct {
		budget      quota.Budget
		from, until string
		want        string
	}{
		"October in Berlin has 745 hours":           {month, "2026-10-05 00:00", "2026-10-06 00:00", "2026-10 2026-09-30T22:00Z 745h"},
		"March in Berlin has 743 hours":             {month, "2027-03-05 00:00", "2027-03-06 00:00", "2027-03 2027-02-28T23:00Z 743h"},
		"February of a leap year in Berlin":         {month, "2028-02-05 00:00", "2028-02-06 00:00", "2028-02 2028-01-31T23:00Z 696h"},
		"the first moment of a month belongs to it": {month, "2026-09-30 22:00", "2026-09-30 22:01", "2026-10 2026-09-30T22:00Z 745h"},
		"the end is not part of the time":           {month, "2026-09-30 20:00", "2026-09-30 22:00", "2026-09 2026-08-31T22:00Z 720h"},
		"a run over month end touches both":         {month, "2026-10-31 22:00", "2026-10-31 23:01", "2026-10 2026-09-30T22:00Z 745h, 2026-11 2026-10-31T23:00Z 720h"},
		"months of UTC are those of UTC":            {in(month, "UTC"), "2026-10-05 00:00", "2026-10-06 00:00", "2026-10 2026-10-01T00:00Z 744h"},
		"the day with 25 hours":                     {day, "2026-10-25 10:00", "2026-10-25 11:00", "2026-10-25 2026-10-24T22:00Z 25h"},
		"the day with 23 hours":                     {day, "2026-03-29 10:00", "2026-03-29 11:00", "2026-03-29 2026-03-28T23:00Z 23h"},
		"three days":                                {day, "2026-06-01 21:00", "2026-06-02 22:01", "2026-06-01 2026-05-31T22:00Z 24h, 2026-06-02 2026-06-01T22:00Z 24h, 2026-06-03 2026-06-02T22:00Z 24h"},
		"a day that began without a midnight":       {in(day, "America/Sao_Paulo"), "2018-11-04 12:00", "2018-11-04 13:00", "2018-11-04 2018-11-04T03:00Z 23h"},
		"a day that does not exist is no window":    {in(day, "Pacific/Apia"), "2011-12-30 09:59", "2011-12-30 10:01", "2011-12-29 2011-12-29T10:00Z 24h, 2011-12-31 2011-12-30T10:00Z 24h"},
		"a fixed window is one":                     {fixed, "2026-01-01 00:00", "2026-07-01 00:00", "fixed 2026-01-01T00:00Z 4344h"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			periods, err := tt.budget.Periods(at(tt.from), at(tt.until))
			if err != nil {
				t.Fatal(err)
			}
			got := make([]string, len(periods))
			for i, p := range periods {
				got[i] = fmt.Sprintf("%s %s %.0fh", p.ID, p.Start.Format("2006-01-02T15:04Z"), p.End.Sub(p.Start).Hours())
			}
			if text := strings.Join(got, ", "); text != tt.want {
				t.Errorf("Periods =\n%s, want\n%s", text, tt.want)
			}
		})
	}
}

// In every zone, windows follow one another without gap or overlap and cover
// exactly the time that was asked about.
func TestPeriodsTileTime(t *testing.T) {
	zones := []string{
		"", "UTC", "America/Sao_Paulo", "America/St_Johns", "Africa/Cairo", "Asia/Beirut", "Pacific/Apia",
		"Pacific/Kiritimati", "Asia/Kathmandu", "Australia/Lord_Howe", "America/Havana", "Africa/Casablanca",
	}
	rapid.Check(t, func(t *rapid.T) {
		b := quota.Budget{
			ID: "b", Scope: quota.ScopeGlobal, Limit: eur("1"), Zone: rapid.SampledFrom(zones).Draw(t, "zone"),
			Window: rapid.SampledFrom([]quota.Window{quota.WindowMonth, quota.WindowDay}).Draw(t, "window"),
		}
		from := time.Unix(rapid.Int64Range(946_684_800+86400*2, 7_000_000_000).Draw(t, "from"), 0)
		until := from.Add(time.Duration(rapid.Int64Range(1, 40*86400).Draw(t, "seconds")) * time.Second)
		periods, err := b.Periods(from, until)
		if err != nil {
			t.Fatal(err)
		}
		first, last := periods[0], periods[len(periods)-1]
		if from.Before(first.Start) || !from.Before(first.End) || until.After(last.End) || !until.After(last.Start) {
			t.Fatalf("%v to %v is not covered exactly by %v", from.UTC(), until.UTC(), periods)
		}
		for i, p := range periods {
			if !p.Start.Before(p.End) || i > 0 && !p.Start.Equal(periods[i-1].End) {
				t.Fatalf("window %d of %v does not follow", i, periods)
			}
		}
	})
}

func TestPeriodsRefuse(t *testing.T) {
	b := quota.Budget{ID: "q3", Scope: quota.ScopeGlobal, Window: quota.WindowFixed, Limit: eur("1"), Start: at("2026-07-01 00:00"), End: at("2026-10-01 00:00")}
	_, err := b.Periods(at("2026-09-30 23:00"), at("2026-10-01 00:01"))
	if !errors.Is(err, quota.ErrNoBudget) || !strings.Contains(err.Error(), `budget "q3" covers 2026-07-01 00:00Z until 2026-10-01 00:00Z only`) {
		t.Errorf("time behind a fixed window: %v", err)
	}
	b = quota.Budget{ID: "d", Scope: quota.ScopeGlobal, Window: quota.WindowDay, Limit: eur("1")}
	for name, span := range map[string][2]time.Time{
		"an end before the start": {at("2026-09-30 23:00"), at("2026-09-30 22:00")},
		"no time at all":          {at("2026-09-30 23:00"), at("2026-09-30 23:00")},
		"no start":                {{}, at("2026-09-30 23:00")},
		"thousands of days":       {at("2026-09-30 23:00"), at("2036-09-30 23:00")},
	} {
		t.Run(name, func(t *testing.T) {
			if p, err := b.Periods(span[0], span[1]); !errors.Is(err, quota.ErrInvalid) {
				t.Errorf("Periods = %v, %v; want ErrInvalid", p, err)
			}
		})
	}
}

func TestBudgetValidate(t *testing.T) {
	good := quota.Budget{ID: "b", Scope: quota.ScopeTenant, Subject: "t", Window: quota.WindowMonth, Limit: eur("1")}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		change func(*quota.Budget)
		want   string
	}{
		"no id":                         {func(b *quota.Budget) { b.ID = "" }, "id"},
		"an id with a line end":         {func(b *quota.Budget) { b.ID = "a\nb" }, "printable"},
		"an unknown scope":              {func(b *quota.Budget) { b.Scope = "team" }, `scope "team" is not project`},
		"an unknown window":             {func(b *quota.Budget) { b.Window = "year" }, `window "year" is not month`},
		"a global budget with subject":  {func(b *quota.Budget) { b.Scope = quota.ScopeGlobal }, "has no subject"},
		"a negative limit":              {func(b *quota.Budget) { b.Limit.Nano = -1 }, "must not be negative"},
		"no currency":                   {func(b *quota.Budget) { b.Limit.Currency = "" }, "needs a currency"},
		"a zone that does not exist":    {func(b *quota.Budget) { b.Zone = "Europe/Bonn" }, "use an IANA name such as Europe/Berlin"},
		"the zone of whichever host":    {func(b *quota.Budget) { b.Zone = "Local" }, "use an IANA name such as Europe/Berlin"},
		"a month with a start":          {func(b *quota.Budget) { b.Start = at("2026-01-01 00:00") }, "for fixed windows only"},
		"a fixed window without bounds": {func(b *quota.Budget) { b.Window = quota.WindowFixed }, "must have a start before its end"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := good
			tt.change(&b)
			if err := b.Validate(); !errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Validate = %v, want %q", err, tt.want)
			}
		})
	}
}

package quota_test

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

// Months have the hours that the clocks of their zone show. cases: C-65
// home-assistant/core#114721, C-67 getlago/lago-api#879
func TestMonthsFollowTheirZone(t *testing.T) {
	for _, tt := range []struct {
		zone, month string
		hours       int64
		start       string
	}{
		{"Europe/Berlin", "2026-10", 745, "2026-09-30T22:00:00Z"},
		{"Europe/Berlin", "2027-03", 743, "2027-02-28T23:00:00Z"},
		{"Europe/Berlin", "2028-02", 696, "2028-01-31T23:00:00Z"},
		{"", "2026-11", 720, "2026-10-31T23:00:00Z"},
		{"UTC", "2026-10", 744, "2026-10-01T00:00:00Z"},
		{"Asia/Kolkata", "2026-11", 720, "2026-10-31T18:30:00Z"},
	} {
		t.Run(tt.zone+" "+tt.month, func(t *testing.T) {
			p, err := quota.Month(tt.zone, tt.month)
			if err != nil {
				t.Fatal(err)
			}
			days, err := p.Days(tt.zone)
			if err != nil {
				t.Fatal(err)
			}
			var sum int64
			for _, d := range days {
				sum += int64(d.End.Sub(d.Start) / time.Hour)
			}
			if p.Hours() != tt.hours || sum != tt.hours || p.Start.Format(time.RFC3339) != tt.start {
				t.Errorf("%d hours in %d days (%d hours) from %s, want %d from %s", p.Hours(), len(days), sum, p.Start.Format(time.RFC3339), tt.hours, tt.start)
			}
			if whole := p.WholeHours(); whole == (tt.zone == "Asia/Kolkata") {
				t.Errorf("whole hours: %v", whole)
			}
		})
	}
	for _, bad := range [][2]string{{"", "2026-13"}, {"", "2026-1"}, {"", "November"}, {"", "0026-01"}, {"Mars/Base", "2026-11"}, {"Local", "2026-11"}} {
		if _, err := quota.Month(bad[0], bad[1]); !errors.Is(err, quota.ErrInvalid) {
			t.Errorf("month %q in %q: %v, want ErrInvalid", bad[1], bad[0], err)
		}
	}
}

// However a cost is cut in time, the parts add up to it, and none is far from
// its share. cases: C-62 useautumn/autumn#3407
func TestAnyCutAddsUp(t *testing.T) {
	start := time.Date(2026, 10, 31, 20, 0, 0, 0, time.UTC)
	rapid.Check(t, func(r *rapid.T) {
		length := rapid.Int64Range(1, 40*24*3600).Draw(r, "seconds")
		total := rapid.OneOf(rapid.Int64Range(0, 1000), rapid.Int64Range(0, 1<<62)).Draw(r, "total")
		s := quota.Spread{From: start, Until: start.Add(time.Duration(length) * time.Second)}
		at := s.From.Add(-time.Hour)
		var sum int64
		for at.Before(s.Until) {
			next := at.Add(time.Duration(rapid.Int64Range(1, 5*24*3600).Draw(r, "cut")) * time.Second)
			part := s.Part(total, at, next)
			if part < 0 {
				r.Fatalf("the part from %v is %d", at, part)
			}
			sum += part
			at = next
		}
		if sum != total {
			r.Fatalf("the parts add up to %d, want %d", sum, total)
		}
		if half := s.Part(total, s.From, s.From.Add(time.Duration(length)*time.Second/2).Truncate(time.Second)); half > total/2+1 {
			r.Fatalf("half of the time got %d of %d", half, total)
		}
	})
}

// Cut at the month's end, a cost falls as the settlement booked it in the
// windows of the budgets: the statement and the budget say the same.
func TestACutAtTheMonthsEndIsWhatTheBudgetsSay(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		book, err := quota.NewBook(quota.Budget{
			ID: "team", Scope: quota.ScopeTenant, Subject: "vision", Window: quota.WindowMonth, Limit: money.Amount{Nano: 1 << 60, Currency: "EUR"}, Hard: true,
		})
		if err != nil {
			r.Fatal(err)
		}
		month, err := quota.Month("", "2026-11")
		if err != nil {
			r.Fatal(err)
		}
		millis := func(name string, most int64) time.Duration {
			return time.Duration(rapid.Int64Range(1000, most).Draw(r, name)) * time.Millisecond
		}
		from := month.Start.Add(-millis("before", 9*3600*1000))
		until := month.Start.Add(millis("behind", 9*3600*1000))
		amount := money.Amount{Nano: rapid.Int64Range(1, 1<<40).Draw(r, "nano"), Currency: "EUR"}
		apply := func(ev quota.Event, err error) quota.Account {
			if err != nil {
				r.Fatal(err)
			}
			ev.At = until.Add(time.Minute)
			a, err := book.Apply(ev)
			if err != nil {
				r.Fatal(err)
			}
			return a
		}
		apply(book.Reserve(quota.Reservation{Burst: "b", Tenant: "vision", Provider: "ovh", Amount: amount, From: from, Until: until.Add(time.Hour)}))
		a := apply(book.Settle(quota.Settlement{Burst: "b", Actual: amount, MachineStart: from, MachineEnd: until, Seconds: 60}))
		got := a.Metered().Amount(a.Spent, month.Start, month.End)
		if want := book.Windows["team"]["2026-11"].Spent; got != want {
			r.Fatalf("%v falls into November, the budget says %v of %v", got, want, amount)
		}
	})
}

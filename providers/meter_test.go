package providers_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"spillway.dev/spillway/providers"
)

func TestBilled(t *testing.T) {
	at := func(s string) time.Time {
		parsed, err := time.Parse(time.RFC3339Nano, "2026-03-01T"+s+"Z")
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	hour := providers.MeterRule{Granularity: time.Hour, ClockAligned: true}
	minute := providers.MeterRule{Granularity: time.Minute}
	second := providers.MeterRule{Minimum: time.Minute}
	tests := map[string]struct {
		rule       providers.MeterRule
		start, end time.Time
		want       time.Duration
	}{
		"clock hours: two minutes over the full hour cost two hours": {hour, at("10:59:00"), at("11:01:00"), 2 * time.Hour},
		"clock hours: one whole hour costs one":                      {hour, at("10:00:00"), at("11:00:00"), time.Hour},
		"clock hours: a moment touches its hour":                     {hour, at("10:00:00"), at("10:00:00"), time.Hour},
		"minutes: a started minute costs a whole one":                {minute, at("10:00:30"), at("10:01:31"), 2 * time.Minute},
		"minutes: not aligned to the clock":                          {minute, at("10:00:59"), at("10:01:01"), time.Minute},
		"seconds: part of a second costs a whole one":                {providers.MeterRule{}, at("10:00:00"), at("10:00:00.000000001"), time.Second},
		"seconds: the minimum counts":                                {second, at("10:00:00"), at("10:00:05"), time.Minute},
		"seconds: beyond the minimum, time counts":                   {second, at("10:00:00"), at("10:01:05"), 65 * time.Second},
		"a meter that never started costs nothing":                   {second, time.Time{}, at("10:00:00"), 0},
		"two clocks that disagree still cost the minimum":            {second, at("10:00:10"), at("10:00:00"), time.Minute},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tt.rule.Billed(tt.start, tt.end); got != tt.want {
				t.Errorf("Billed = %s, want %s", got, tt.want)
			}
		})
	}
}

// drawRule makes any sane rule; small units reach the edges soon.
func drawRule(t *rapid.T) providers.MeterRule {
	return providers.MeterRule{
		Granularity:  time.Duration(rapid.SampledFrom([]int64{0, 1, 2, 7, int64(time.Second), int64(time.Minute), int64(time.Hour)}).Draw(t, "granularity")),
		Minimum:      time.Duration(rapid.Int64Range(0, int64(2*time.Hour)).Draw(t, "minimum")),
		ClockAligned: rapid.Bool().Draw(t, "aligned"),
	}
}

func drawTime(t *rapid.T) time.Time {
	return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(rapid.Int64Range(0, int64(48*time.Hour)).Draw(t, "start")))
}

func drawLength(t *rapid.T) time.Duration {
	return time.Duration(rapid.OneOf(rapid.Int64Range(0, 20), rapid.Int64Range(0, int64(72*time.Hour))).Draw(t, "length"))
}

func TestWorstBoundsEveryBill(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rule, start, d := drawRule(t), drawTime(t), drawLength(t)
		billed := rule.Billed(start, start.Add(d))
		if worst := rule.Worst(d); billed > worst {
			t.Fatalf("%+v: billed %s for %s from %s, worst is %s", rule, billed, d, start, worst)
		}
		if billed < d || billed < rule.Minimum {
			t.Fatalf("%+v: billed %s for %s: less than the time or the minimum", rule, billed, d)
		}
	})
}

func TestWorstIsReached(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rule, d := drawRule(t), drawLength(t)
		unit := max(rule.Granularity, 1)
		late := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Truncate(unit).Add(unit - 1)
		if rule.Granularity == 0 {
			late = late.Truncate(time.Second).Add(time.Second - 1)
		}
		if billed, worst := rule.Billed(late, late.Add(d)), rule.Worst(d); billed != worst {
			t.Fatalf("%+v: a meter of %s that starts at the end of a unit bills %s, but worst is %s", rule, d, billed, worst)
		}
	})
}

func TestMoreTimeNeverCostsLess(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rule, start, d, more := drawRule(t), drawTime(t), drawLength(t), drawLength(t)
		if a, b := rule.Billed(start, start.Add(d)), rule.Billed(start, start.Add(d+more)); a > b {
			t.Fatalf("%+v: %s bills %s, %s bills %s", rule, d, a, d+more, b)
		}
		if a, b := rule.Worst(d), rule.Worst(d+more); a > b {
			t.Fatalf("%+v: worst of %s is %s, of %s is %s", rule, d, a, d+more, b)
		}
	})
}

func TestWorstOfForEver(t *testing.T) {
	for _, rule := range []providers.MeterRule{{}, {Granularity: time.Hour}, {Granularity: time.Hour, ClockAligned: true}} {
		if got := rule.Worst(1<<63 - 1); got != 1<<63-1 {
			t.Errorf("%+v: Worst of the longest duration = %s: it overflowed", rule, got)
		}
	}
}

func TestWindow(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	m := providers.Machine{Created: now.Add(-time.Hour), Started: now.Add(-50 * time.Minute)}
	gone := m
	gone.Deleted = now.Add(-10 * time.Minute)
	never := providers.Machine{Created: now.Add(-time.Hour)}
	tests := map[string]struct {
		start   providers.MeterEvent
		machine providers.Machine
		from    time.Time
		to      time.Time
	}{
		"from created, still there":            {providers.MeterCreated, m, m.Created, now},
		"from started, gone":                   {providers.MeterStarted, gone, m.Started, gone.Deleted},
		"from started, never started":          {providers.MeterStarted, never, time.Time{}, time.Time{}},
		"no rule said: from created, the most": {"", gone, m.Created, gone.Deleted},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			from, to := providers.MeterRule{Start: tt.start}.Window(tt.machine, now)
			if !from.Equal(tt.from) || !to.Equal(tt.to) {
				t.Errorf("Window = %s to %s, want %s to %s", from, to, tt.from, tt.to)
			}
		})
	}
}

func TestMeterRuleValidate(t *testing.T) {
	tests := map[string]struct {
		rule providers.MeterRule
		bad  bool
	}{
		"the zero rule is a rule":    {providers.MeterRule{}, false},
		"negative minimum":           {providers.MeterRule{Minimum: -1}, true},
		"a start that nobody meters": {providers.MeterRule{Start: "deleted"}, true},
		"a stop that nobody meters":  {providers.MeterRule{Stop: "created"}, true},
		"clock weeks":                {providers.MeterRule{Granularity: 7 * 24 * time.Hour, ClockAligned: true}, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if err := tt.rule.Validate(); (err != nil) != tt.bad {
				t.Errorf("Validate = %v, want an error: %v", err, tt.bad)
			}
		})
	}
}

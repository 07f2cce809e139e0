package stager

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const hour = time.Hour

func berlin(t *testing.T) *time.Location {
	t.Helper()
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	return zone
}

func TestTheLowestCapOfTheHourHolds(t *testing.T) {
	p := pacer{zone: berlin(t), caps: []Cap{
		{From: 8 * hour, To: 18 * hour, BytesPerSecond: 20 << 20},
		{From: 12 * hour, To: 24 * hour, BytesPerSecond: 10 << 20},
		{From: 22 * hour, To: 6 * hour, BytesPerSecond: 40 << 20},
	}}
	for at, want := range map[string]int64{
		"2026-12-01T07:59:59+01:00": 0,
		"2026-12-01T08:00:00+01:00": 20 << 20,
		"2026-12-01T12:00:00+01:00": 10 << 20,
		"2026-12-01T23:59:59+01:00": 10 << 20, // of two, the lower
		"2026-12-01T00:00:00+01:00": 40 << 20, // the night before
		"2026-12-01T05:59:59+01:00": 40 << 20,
		"2026-12-01T06:00:00+01:00": 0,
		"2026-07-01T06:00:00Z":      20 << 20, // summer: eight o'clock there
		"2026-12-01T06:30:00Z":      0,        // winter: half past seven
	} {
		moment, err := time.Parse(time.RFC3339, at)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.rate(moment); got != want {
			t.Errorf("%s: %d bytes per second, want %d", at, got, want)
		}
	}
}

func TestCapsThatMakeNoSense(t *testing.T) {
	for name, c := range map[string]Cap{
		"never":               {From: hour, To: hour, BytesPerSecond: 1 << 20},
		"before the day":      {From: -hour, To: hour, BytesPerSecond: 1 << 20},
		"behind the day":      {From: hour, To: 25 * hour, BytesPerSecond: 1 << 20},
		"begins with the end": {From: 24 * hour, To: hour, BytesPerSecond: 1 << 20},
		"nothing goes":        {From: hour, To: 2 * hour},
		"hardly anything":     {From: hour, To: 2 * hour, BytesPerSecond: 1<<20 - 1},
	} {
		if c.Check() == nil {
			t.Errorf("%s: %+v is taken", name, c)
		}
	}
	if err := (Cap{To: 24 * hour, BytesPerSecond: 1 << 20}).Check(); err != nil {
		t.Error(err)
	}
}

// However many send, together they take what the cap of the hour leaves, and
// all of the line when it has ended.
func TestAllStagingsTogetherKeepToTheCap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // begins at midnight UTC
		const rate, senders, each = 8 << 20, 5, 64
		p := pacer{zone: time.UTC, now: time.Now, caps: []Cap{{To: 30 * time.Second, BytesPerSecond: rate}}}
		begun := time.Now()
		var all sync.WaitGroup
		send := func() {
			for range each {
				if err := p.pass(t.Context(), onePiece); err != nil {
					t.Error(err)
				}
			}
		}
		for range senders {
			all.Go(send)
		}
		all.Wait()
		if took, want := time.Since(begun), senders*each*onePiece*time.Second/rate; took != want {
			t.Errorf("%d bytes took %v, want %v", senders*each*onePiece, took, want)
		}
		time.Sleep(time.Second) // an idle second is not saved up
		begun = time.Now()
		send()
		if took, want := time.Since(begun), each*onePiece*time.Second/rate; took != want {
			t.Errorf("after a pause %v, want %v", took, want)
		}
		time.Sleep(time.Minute)
		begun = time.Now()
		send()
		if took := time.Since(begun); took != 0 {
			t.Errorf("without a cap it took %v", took)
		}
	})
}

func TestASlowLineIsLeftAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pacer{zone: time.UTC, now: time.Now, caps: []Cap{{To: 24 * hour, BytesPerSecond: 1 << 20}}}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		begun := time.Now()
		if err := p.pass(ctx, 100<<20); !errors.Is(err, context.Canceled) || time.Since(begun) != time.Second {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
	})
}

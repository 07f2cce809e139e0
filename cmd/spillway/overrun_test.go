package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
	"spillway.dev/spillway/quota/money"
)

func amount(t *testing.T, s string) money.Amount {
	t.Helper()
	a, err := money.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// overrunLedger is a ledger with one burst that cost 2 EUR more than reserved,
// and what it takes to reserve again.
func overrunLedger(t *testing.T) (file string, again func() error) {
	t.Helper()
	ctx, now := t.Context(), time.Now().UTC()
	file = filepath.Join(t.TempDir(), "ledger.db")
	burst := func(uid string) quota.Reservation {
		return quota.Reservation{
			Burst: uid, Tenant: "t", Provider: "west", Namespace: "team", Owner: "job", Budgets: []string{"t/m"}, Mode: "safe",
			Amount: amount(t, "5.00 EUR"), From: now, Until: now.Add(time.Hour), Offer: "g2",
			Price: money.Rate{NanoPerHour: 1_000_000_000, Currency: "EUR"},
		}
	}
	in := func(call func(l *ledger.Ledger, epoch int64) error) error {
		l, err := ledger.Open(ctx, file, ledger.Options{Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		epoch, err := l.BeginEpoch(ctx, "test")
		if err != nil {
			t.Fatal(err)
		}
		return call(l, epoch)
	}
	err := in(func(l *ledger.Ledger, epoch int64) error {
		budget := quota.Budget{ID: "t/m", Scope: quota.ScopeTenant, Subject: "t", Window: quota.WindowMonth, Zone: "Europe/Berlin", Limit: amount(t, "100.00 EUR"), Hard: true}
		if err := l.SetBudgets(ctx, epoch, []quota.Budget{budget}); err != nil {
			return err
		}
		if _, err := l.Reserve(ctx, epoch, burst("late")); err != nil {
			return err
		}
		_, err := l.Settle(ctx, epoch, quota.Settlement{Burst: "late", Actual: amount(t, "7.00 EUR"), MachineStart: now, MachineEnd: now.Add(7 * time.Hour), Seconds: 7 * 3600, Cause: "Succeeded"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return file, func() error {
		return in(func(l *ledger.Ledger, epoch int64) error {
			_, err := l.Reserve(ctx, epoch, burst("next"))
			return err
		})
	}
}

// spillway runs a command of this program.
func spillway(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c := root()
	c.SetOut(&out)
	c.SetArgs(args)
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

// TestAcceptOverrun: an open overrun stops every burst until a person answers
// for it, once.
func TestAcceptOverrun(t *testing.T) {
	file, again := overrunLedger(t)
	if err := again(); err == nil || !strings.Contains(err.Error(), "accept the overrun") {
		t.Fatalf("a burst starts beside an open overrun: %v", err)
	}
	accept := []string{"ledger", "accept-overrun", "--file", file, "--currency", "EUR", "--by", "p-17", "--reason", "OPS-4711"}
	out, err := spillway(t, accept...)
	if err != nil || !strings.Contains(out, "2.00 EUR accepted by p-17: OPS-4711") {
		t.Fatalf("%q, %v", out, err)
	}
	if err := again(); err != nil {
		t.Errorf("after the acceptance: %v", err)
	}
	if out, err := spillway(t, "ledger", "verify", "--file", file); err != nil {
		t.Errorf("the ledger is not sound: %v\n%s", err, out)
	}
	if _, err := spillway(t, accept...); err == nil || !strings.Contains(err.Error(), "no open overrun in EUR: nothing was changed") {
		t.Errorf("a second acceptance: %v", err)
	}
}

func TestAcceptOverrunMakesNoLedger(t *testing.T) {
	file := filepath.Join(t.TempDir(), "absent.db")
	_, err := spillway(t, "ledger", "accept-overrun", "--file", file, "--currency", "EUR", "--by", "p", "--reason", "r")
	if err == nil || !strings.Contains(err.Error(), "absent.db") {
		t.Errorf("%v, want an error that names the file", err)
	}
	if found, _ := filepath.Glob(file + "*"); len(found) > 0 {
		t.Errorf("it made %v", found)
	}
}

package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/providers/fake"
)

// Every call that asks a cloud for a change is written down before it goes out
// and when it is answered, and every call is counted; what only reads is not
// written down.
func TestCallsAreAuditedAndCounted(t *testing.T) {
	cloud := fake.New(fake.Config{Provider: "west", Region: "w1", Secrets: []string{"s"}, Offers: []providers.Offer{{InstanceType: "gpu", CapacityType: "on-demand"}}})
	t.Cleanup(cloud.Close)
	server := httptest.NewServer(cloud.Handler())
	t.Cleanup(server.Close)
	var book bytes.Buffer
	m, err := newMeters(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	d := newAccounts(slog.New(slog.NewJSONHandler(&book, nil)), m).around("west", fake.Dial(server.URL, "s", "home", nil))
	made, err := d.Create(t.Context(), providers.Request{
		Token: "tok-1", Installation: "home", Burst: "b", Name: "n", Expires: time.Now().Add(time.Hour),
		Offer: providers.Offer{Provider: "west", Region: "w1", InstanceType: "gpu", CapacityType: "on-demand"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := d.Delete(t.Context(), "srv-unknown"); providers.KindOf(err) != providers.NotFound {
		t.Fatal(err)
	}
	if err := d.Delete(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"asked west create tok-1 west/w1//gpu/on-demand",
		"answered west create tok-1 west/w1//gpu/on-demand " + made.ID + " done",
		"asked west delete srv-unknown", "answered west delete srv-unknown not found",
		"asked west delete " + made.ID, "answered west delete " + made.ID + " done",
	}
	if diff := cmp.Diff(want, readBook(t, book.String())); diff != "" {
		t.Errorf("the audit log, -want +got:\n%s", diff)
	}
	for labels, n := range map[[2]string]float64{{"create", "done"}: 1, {"list", "done"}: 1, {"delete", "done"}: 1, {"delete", "not found"}: 1} {
		if got := testutil.ToFloat64(m.calls.WithLabelValues("west", labels[0], labels[1])); got != n {
			t.Errorf("%s, %s: counted %v calls, want %v", labels[0], labels[1], got, n)
		}
	}
	if n := testutil.CollectAndCount(m.callSeconds); n != 3 {
		t.Errorf("%d operations are measured, want 3", n)
	}
}

// readBook reads the lines of an audit log.
func readBook(t *testing.T, book string) []string {
	t.Helper()
	var lines []string
	for _, raw := range strings.Split(strings.TrimSpace(book), "\n") {
		var line map[string]any
		if err := json.Unmarshal([]byte(raw), &line); err != nil {
			t.Fatal(err)
		}
		words := []string{"asked"}
		if strings.Contains(fmt.Sprint(line["msg"]), "answered") {
			words[0] = "answered"
		}
		for _, key := range []string{"provider", "op", "token", "offer", "instance", "outcome"} {
			if v, ok := line[key]; ok {
				words = append(words, fmt.Sprint(v))
			}
		}
		lines = append(lines, strings.Join(words, " "))
	}
	return lines
}

// The limit is the account's: a new credential makes a new driver, and no new
// bucket; another provider has its own.
func TestTheLimitIsTheAccounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := newMeters(prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		a := newAccounts(slog.New(slog.DiscardHandler), m)
		begin := time.Now()
		for _, d := range slices.Repeat([]providers.Driver{a.around("west", silent{}), a.around("west", silent{})}, callsBurst) {
			if err := d.Delete(t.Context(), "srv"); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(begin); took != callsBurst*callsEvery {
			t.Errorf("%d calls took %s, want %s", 2*callsBurst, took, callsBurst*callsEvery)
		}
		begin = time.Now()
		if err := a.around("east", silent{}).Delete(t.Context(), "srv"); err != nil || time.Since(begin) != 0 {
			t.Errorf("another account waited %s: %v", time.Since(begin), err)
		}
	})
}

// silent does what it is asked, at once.
type silent struct{ providers.Driver }

func (silent) Delete(context.Context, string) error { return nil }

// What staging sends is counted, for all bursts together.
func TestStagedBytesAreCounted(t *testing.T) {
	r := prometheus.NewRegistry()
	m, err := newMeters(r)
	if err != nil {
		t.Fatal(err)
	}
	m.sent(64 << 10)
	m.sent(1)
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == "spillway_staged_bytes_total" {
			if got := f.GetMetric()[0].GetCounter().GetValue(); got != 64<<10+1 {
				t.Errorf("%v bytes, want %d", got, 64<<10+1)
			}
			return
		}
	}
	t.Error("there is no such metric")
}

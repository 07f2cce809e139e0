package link

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// wire is a transport in virtual time.
type wire func(*http.Request) (*http.Response, error)

func (w wire) RoundTrip(r *http.Request) (*http.Response, error) { return w(r) }

// answer is a reply of a hub without a network.
func answer(t *testing.T, r Reply) *http.Response {
	rec := httptest.NewRecorder()
	rec.Write(mustJSON(t, r)) //nolint:errcheck // a recorder does not fail
	return rec.Result()
}

// virtual returns a client whose network and clock are the test's.
func virtual(w wire, heard func(Heard)) *Client {
	start := time.Now()
	c := NewClient(ClientConfig{
		Controller: "hub:1", Report: func() Report { return Report{} }, Heard: heard,
		Since: func() time.Duration { return time.Since(start) }, Wall: time.Now,
	})
	c.http = &http.Client{Transport: w}
	return c
}

// Failures are spread out, and the longest pause is bounded: a controller that
// comes back is found within it.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries []time.Time
		c := virtual(func(*http.Request) (*http.Response, error) {
			tries = append(tries, time.Now())
			return nil, errors.New("no route")
		}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		c.Run(ctx)
		if n := len(tries); n < 40 || n > 100 {
			t.Errorf("%d tries in ten minutes without a controller", n)
		}
		different := map[time.Duration]bool{}
		for i := 1; i < len(tries); i++ {
			pause := tries[i].Sub(tries[i-1])
			if pause > longPause || pause < firstPause/2 {
				t.Errorf("pause of %v before try %d", pause, i)
			}
			different[pause] = true
		}
		if len(different) < len(tries)/2 {
			t.Errorf("%d different pauses in %d tries: no jitter", len(different), len(tries))
		}
	})
}

// A job that writes many results kicks all the time; leases come through all
// the same.
func TestKicksDoNotStarveTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		heard := 0
		c := virtual(func(r *http.Request) (*http.Response, error) {
			select {
			case <-time.After(200 * time.Millisecond): // a slow network
			case <-r.Context().Done():
				return nil, r.Context().Err()
			}
			now := time.Now()
			return answer(t, Reply{Hub: "h", Received: now, Sent: now}), nil
		}, func(Heard) { heard++ })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var kicks sync.WaitGroup
		kicks.Go(func() {
			for ctx.Err() == nil {
				c.Kick()
				time.Sleep(10 * time.Millisecond)
			}
		})
		c.Run(ctx)
		kicks.Wait()
		if heard < 100 {
			t.Errorf("%d replies in a minute of kicks", heard)
		}
	})
}

// A kick ends a held request within a second, so that news travel.
func TestKickEndsAHeldRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []time.Duration
		start := time.Now()
		c := virtual(func(r *http.Request) (*http.Response, error) {
			asked = append(asked, time.Since(start))
			<-r.Context().Done()
			return nil, r.Context().Err()
		}, nil)
		c.config.Failed = func(err error, _ time.Duration) { t.Errorf("a kick is no failure: %v", err) }
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		time.AfterFunc(5*time.Second, c.Kick)
		c.Run(ctx)
		if len(asked) != 2 || asked[1] != 5*time.Second+patience {
			t.Errorf("asked at %v", asked)
		}
	})
}

// The offset is measured like NTP does, and the time that a request was held
// is not taken for network.
func TestOffset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const skew = 90 * time.Second // the controller is ahead
		var got Heard
		c := virtual(func(*http.Request) (*http.Response, error) {
			time.Sleep(100 * time.Millisecond)
			received := time.Now().Add(skew)
			time.Sleep(14 * time.Second) // held
			sent := time.Now().Add(skew)
			time.Sleep(100 * time.Millisecond)
			return answer(t, Reply{Hub: "h", Received: received, Sent: sent}), nil
		}, func(h Heard) { got = h })
		time.Sleep(time.Hour)
		asked := c.config.Since()
		if err := c.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		if want := (Offset{Known: true, Ahead: -skew, Error: 100 * time.Millisecond}); got.Clock != want {
			t.Errorf("clock = %+v, want %+v", got.Clock, want)
		}
		if got.Asked != asked {
			t.Errorf("asked at %v, want when the request left, %v", got.Asked, asked)
		}
	})
}

func TestBadReplies(t *testing.T) {
	now := time.Now()
	tests := map[string]func(t *testing.T) *http.Response{
		"refused": func(*testing.T) *http.Response {
			rec := httptest.NewRecorder()
			http.Error(rec, "not you", http.StatusForbidden)
			return rec.Result()
		},
		"no JSON": func(*testing.T) *http.Response {
			rec := httptest.NewRecorder()
			rec.WriteString("hello") //nolint:errcheck // a recorder does not fail
			return rec.Result()
		},
		"no time":        func(t *testing.T) *http.Response { return answer(t, Reply{}) },
		"time runs back": func(t *testing.T) *http.Response { return answer(t, Reply{Received: now, Sent: now.Add(-1)}) },
	}
	for name, resp := range tests {
		t.Run(name, func(t *testing.T) {
			c := virtual(func(*http.Request) (*http.Response, error) { return resp(t), nil },
				func(Heard) { t.Error("heard") })
			if err := c.Sync(t.Context()); err == nil {
				t.Error("Sync took it")
			}
		})
	}
}

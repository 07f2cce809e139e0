package fake_test

import (
	"net/http"
	"net/http/httptest"

	"spillway.dev/spillway/providers/fake"
)

// handlerClient is a client whose network is the cloud's handler itself.
func handlerClient(c *fake.Cloud) *http.Client {
	handler := c.Handler()
	return &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		if r.Body == nil {
			r.Body = http.NoBody
		}
		handler.ServeHTTP(w, r)
		return w.Result(), nil
	})}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

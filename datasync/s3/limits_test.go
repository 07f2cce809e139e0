package s3_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/s3"
)

// The parts of an object grow with it, and what no store holds is refused
// before a byte moves.
//
// cases: D7 (10,000 parts, 5 GiB a part, 5 TiB an object)
func TestPartsGrowWithTheObject(t *testing.T) {
	const mib, gib, tib = 1 << 20, 1 << 30, 1 << 40
	for size, want := range map[int64]uint64{
		0: 16 * mib, 1: 16 * mib, 160_000 * mib: 16 * mib, 160_000*mib + 1: 17 * mib, 200 * gib: 21 * mib, 5 * tib: 525 * mib,
	} {
		got, err := s3.PartSize(size)
		if err != nil || got != want {
			t.Errorf("an object of %d bytes: parts of %d, %v; want %d", size, got, err, want)
		}
		if parts := (size + int64(got) - 1) / int64(got); parts > 10_000 {
			t.Errorf("an object of %d bytes needs %d parts", size, parts)
		}
	}
	st, read := untouched(t)
	err := st.Put(t.Context(), "staging", "k", read, 5*tib+1)
	if err == nil || !strings.Contains(err.Error(), "5 TiB") {
		t.Errorf("more than 5 TiB: %v", err)
	}
}

// cases: D8 rclone (48 GiB stream limit), A2 gitea PR#38753
func TestAStreamOfUnknownSizeIsRefusedAtOnce(t *testing.T) {
	st, read := untouched(t)
	if err := st.Put(t.Context(), "staging", "k", read, -1); err == nil || !strings.Contains(err.Error(), "size") {
		t.Errorf("size -1: %v", err)
	}
}

// untouched is a store that nobody may ask and a body that nobody may read.
func untouched(t *testing.T) (*s3.Staging, io.Reader) {
	t.Helper()
	st, err := s3.NewStaging(s3.Endpoint{URL: "http://store", AccessKey: "a", SecretKey: "b", Transport: answers(func(*http.Request) (*http.Response, error) {
		t.Error("the store was asked")
		return nil, errors.New("nobody there")
	})})
	if err != nil {
		t.Fatal(err)
	}
	return st, readerFunc(func([]byte) (int, error) {
		t.Error("the body was read")
		return 0, io.EOF
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

type answers func(*http.Request) (*http.Response, error)

func (f answers) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A request that is sent again is signed again: a store refuses what was
// signed a quarter of an hour ago.
//
// cases: E2 aws-sdk-net#211
func TestWhatIsSentAgainIsSignedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ages []time.Duration
		store := answers(func(r *http.Request) (*http.Response, error) {
			if r.Body != nil {
				_, _ = io.Copy(io.Discard, r.Body) // in memory
			}
			signed, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
			if err != nil {
				t.Error(err)
			}
			ages = append(ages, time.Since(signed))
			if len(ages) == 1 {
				time.Sleep(20 * time.Minute) // in a queue, on a line that breaks
				return nil, io.ErrUnexpectedEOF
			}
			h := http.Header{"Etag": {`"e"`}, "Last-Modified": {time.Now().UTC().Format(http.TimeFormat)}, "Content-Length": {"1"}}
			return &http.Response{StatusCode: http.StatusOK, Header: h, Body: http.NoBody, Request: r}, nil
		})
		e := s3.Endpoint{URL: "http://store", AccessKey: "a", SecretKey: "b", Transport: store}
		for name, call := range map[string]func() error{
			"pin": func() error { _, err := source(t, e).Pin(t.Context(), "data", "k"); return err },
			"open": func() error {
				_, err := source(t, e).Open(t.Context(), datasync.Object{Bucket: "data", Key: "k", ETag: "e", Size: 1})
				return err
			},
			"put": func() error {
				st, err := s3.NewStaging(e)
				if err != nil {
					return err
				}
				return st.Put(t.Context(), "staging", "k", bytes.NewReader([]byte("x")), 1)
			},
		} {
			ages = nil
			if err := call(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if len(ages) != 2 || ages[1] > time.Minute {
				t.Errorf("%s: signatures of ages %v were sent, want two fresh ones", name, ages)
			}
		}
	})
}

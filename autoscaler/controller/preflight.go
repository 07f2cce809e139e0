package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
)

// Finding is what one check of [Preflight] found out.
type Finding struct {
	Check string `json:"check"`
	OK    bool   `json:"ok"`
	// Detail is what was seen, or what is wrong and what to do.
	Detail string `json:"detail"`
}

// maxSkew is how far the clocks of this machine and of the API server may be
// apart: leases, join deadlines and stamps are made here and compared there.
const maxSkew = 10 * time.Second

// minFree is the room that the data folder needs: a ledger that can't be
// written stops every purchase.
const minFree = 64 << 20

// Preflight looks for everything that would keep a controller from its work,
// and changes nothing. Findings come in a fixed order; what depends on a
// failed check is left out. It fails only when the context ends.
func Preflight(ctx context.Context, c Config) ([]Finding, error) {
	var all []Finding
	note := func(check, seen string, err error) bool {
		f := Finding{Check: check, OK: err == nil, Detail: seen}
		if err != nil {
			f.Detail = err.Error()
		}
		all = append(all, f)
		return f.OK
	}
	seen, err := dataFolder(c.DataDir)
	note("data folder", seen, err)
	c.REST = unthrottled(c.REST)
	seen, at, err := apiServer(ctx, c.REST)
	if note("API server", seen, err) {
		seen, err = clock(time.Now(), at)
		note("clock", seen, err)
		for _, check := range []struct {
			name string
			run  func(context.Context, *rest.Config) (string, error)
		}{{"kinds", kinds}, {"admission policies", guards}, {"rights", rights}, {"kinds of work", work}} {
			seen, err := check.run(ctx, c.REST)
			note(check.name, seen, err)
		}
	}
	return all, ctx.Err()
}

// ready is Preflight as a gate of Run.
func ready(ctx context.Context, c Config) error {
	findings, err := Preflight(ctx, c)
	if err != nil {
		return fmt.Errorf("preflight: %w", err)
	}
	var wrong []error
	for _, f := range findings {
		if !f.OK {
			wrong = append(wrong, fmt.Errorf("%s: %s", f.Check, f.Detail))
		}
	}
	return errors.Join(wrong...)
}

// dataFolder writes a file, and looks how much room there is.
func dataFolder(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("%w; choose a folder that this user may write", err)
	}
	probe := filepath.Join(dir, ".preflight")
	if err := writeDurably(probe); err != nil {
		return "", fmt.Errorf("%w; free room on it, or choose a folder that this user may write", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return "", fmt.Errorf("look for room on %s: %w", dir, err)
	}
	free := fs.Bavail * uint64(fs.Bsize)
	if free < minFree {
		return "", fmt.Errorf("%s has %d MiB free, the ledger needs %d at least: free some, no burst can be booked without", dir, free>>20, minFree>>20)
	}
	return fmt.Sprintf("%s, %d MiB free", dir, free>>20), nil
}

func writeDurably(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, 4096))
	return errors.Join(err, f.Sync(), f.Close(), os.Remove(path))
}

// apiServer asks for the version, which everybody who is known may read, and
// returns the server's own time.
func apiServer(ctx context.Context, c *rest.Config) (seen string, at time.Time, err error) {
	if c == nil {
		return "", at, errors.New("no kubeconfig is set; name one")
	}
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		return "", at, fmt.Errorf("%s: %w; check the kubeconfig", c.Host, err)
	}
	base, _, err := rest.DefaultServerUrlFor(c)
	if err != nil {
		return "", at, fmt.Errorf("%s: %w; check the kubeconfig", c.Host, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("api").String(), nil)
	if err != nil {
		return "", at, fmt.Errorf("%s: %w", c.Host, err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", at, fmt.Errorf("%s does not answer: %w; check that it runs and that the kubeconfig names it", c.Host, err)
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized:
		return "", at, fmt.Errorf("%s does not know the kubeconfig's identity (401): renew its token or certificate", c.Host)
	default:
		return "", at, fmt.Errorf("%s answers %s to a request for its API groups: check that the kubeconfig names an API server", c.Host, resp.Status)
	}
	at, err = http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return "", at, fmt.Errorf("%s sends no time of its own: %w", c.Host, err)
	}
	return c.Host, at, nil
}

// clock compares two clocks; the server's has whole seconds.
func clock(here, there time.Time) (string, error) {
	apart := here.Sub(there)
	if apart.Abs() > maxSkew {
		return "", fmt.Errorf("this machine's clock is %s apart from the API server's, at most %s is safe: leases and stamps would end at the wrong time; set the clocks (chrony, NTP)", apart.Round(time.Second), maxSkew)
	}
	return "within " + maxSkew.String() + " of the API server's", nil
}

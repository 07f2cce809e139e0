//go:build ceph

// With this tag the store at home is a real Ceph gateway: make ceph. It needs
// root and installs Debian packages.

package cache_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"spillway.dev/spillway/e2e/ceph"
	"spillway.dev/spillway/e2e/objectstore"
)

var labs = ceph.Pool{Config: ceph.Config{
	Cache: filepath.Join("..", "..", "bin", ".built"), Name: storeName,
	Users: []ceph.User{
		{Name: "root", AccessKey: "root", SecretKey: "rootsecret"},
		{Name: "job", AccessKey: "job", SecretKey: "jobsecret"},
		{Name: "stranger", AccessKey: "stranger", SecretKey: "strangersecret"},
	},
}}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == partArg {
		os.Exit(runPart(os.Args[2:]))
	}
	log.SetOutput(io.Discard) // net/http remarks on connections that tests cut
	status := m.Run()
	if err := labs.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = max(status, 1)
	}
	os.Exit(status)
}

// gatewayHome is one emptied gateway.
type gatewayHome struct {
	*ceph.Lab
	since ceph.Mark
	over  bool
}

func openHome(t testing.TB) home {
	t.Helper()
	l, err := labs.Take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h := &gatewayHome{Lab: l}
	if h.since, err = l.Mark(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if h.over {
			return
		}
		if err := labs.Return(context.Background(), l); err != nil { // the test's own context is over
			t.Error(err)
		}
	})
	return h
}

// Stop ends the gateway for good.
func (h *gatewayHome) Stop() error {
	h.over = true
	return h.Lab.Stop()
}

func (h *gatewayHome) Log() ([]objectstore.Entry, error) {
	said, err := h.Lab.Log(h.since)
	var all []objectstore.Entry
	for _, e := range said {
		all = append(all, objectstore.Entry{Method: e.Method, Bucket: e.Bucket, Key: e.Key, Status: e.Status, BytesSent: e.BytesSent, Requester: e.User})
	}
	return all, err
}

// Domains are names under which the gateway reads bucket.NAME as a bucket.
func (h *gatewayHome) Domains() []string { return []string{storeName} }

func (h *gatewayHome) Same() int { return http.StatusOK } // with x-rgw-auth

func (h *gatewayHome) Policy(bucket, user string) string { return ceph.Policy(bucket, user, "root") }

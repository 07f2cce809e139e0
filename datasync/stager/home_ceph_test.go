//go:build ceph

// With this tag the stores are real Ceph gateways: make ceph. It needs root and
// installs Debian packages.

package stager_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"spillway.dev/spillway/e2e/ceph"
)

var labs = ceph.Pool{Config: ceph.Config{
	Cache: filepath.Join("..", "..", "bin", ".built"), Name: "s3.onprem.test",
	Users: []ceph.User{{Name: "root", AccessKey: "root", SecretKey: "rootsecret"}},
}}

func TestMain(m *testing.M) {
	status := m.Run()
	if err := labs.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = max(status, 1)
	}
	os.Exit(status)
}

// open returns the address of an empty gateway.
func open(t testing.TB, _ bool) string {
	t.Helper()
	l, err := labs.Take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := labs.Return(context.Background(), l); err != nil { // the test's own context is over
			t.Error(err)
		}
	})
	return l.Addr()
}

//go:build !ceph

package stager_test

import (
	"os"
	"testing"

	"spillway.dev/spillway/e2e/objectstore"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "objectstore" {
		os.Exit(objectstore.Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// open starts a store of versitygw on a folder and returns its address. With
// the build tag ceph it is a real Ceph gateway instead.
func open(t testing.TB, versions bool) string {
	t.Helper()
	s, err := objectstore.Start(t.Context(), objectstore.Config{
		Dir: t.TempDir(), Addr: "127.0.0.1:0", AccessKey: "root", SecretKey: "rootsecret", Versions: versions,
		Exec: []string{os.Args[0], "objectstore"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop() })
	return s.Addr()
}

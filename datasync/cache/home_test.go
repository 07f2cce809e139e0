//go:build !ceph

package cache_test

import (
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"spillway.dev/spillway/e2e/objectstore"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == partArg {
		os.Exit(runPart(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == "objectstore" {
		os.Exit(objectstore.Main(os.Args[2:]))
	}
	log.SetOutput(io.Discard) // net/http remarks on connections that tests cut
	os.Exit(m.Run())
}

// versity is a home of versitygw on a folder. With the build tag ceph it is a
// real Ceph gateway instead.
type versity struct {
	*objectstore.Store
	log string
}

func (v versity) Log() ([]objectstore.Entry, error) { return objectstore.ReadLog(v.log) }

func (v versity) Same() int { return http.StatusNotModified }

func (v versity) Policy(bucket, user string) string { return objectstore.Allow(bucket, user) }

func openHome(t testing.TB) home {
	t.Helper()
	dir := t.TempDir()
	v := versity{log: filepath.Join(dir, "access.log")}
	var err error
	v.Store, err = objectstore.Start(t.Context(), objectstore.Config{
		Dir: filepath.Join(dir, "store"), Addr: "127.0.0.1:0", AccessKey: "root", SecretKey: "rootsecret",
		Users:     []objectstore.User{{AccessKey: "job", SecretKey: "jobsecret"}, {AccessKey: "stranger", SecretKey: "strangersecret"}},
		AccessLog: v.log, Exec: []string{os.Args[0], "objectstore"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = v.Stop() })
	return v
}

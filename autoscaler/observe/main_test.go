package observe

import (
	"flag"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	flag.Bool("update", false, "accept the new texts of the golden files")
	flag.Parse()
	os.Exit(m.Run())
}

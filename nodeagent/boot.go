package nodeagent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// SinceBoot reads the time since the machine started, its sleep included.
// Nobody can set this clock, and it goes on when the agent restarts.
func SinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		// Linux has had this clock since 2.6.39; without it no lease can be
		// kept, and a node without a lease must not work.
		panic(fmt.Sprintf("read the clock since boot: %v", err))
	}
	return time.Duration(ts.Nano())
}

// BootID names the machine's present boot.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}

// Harden switches off what could write this process's memory to a disk: core
// dumps and debuggers of other users. It is called once, before any key comes.
func Harden() error {
	none := unix.Rlimit{Cur: 0, Max: 0}
	return errors.Join(
		unix.Setrlimit(unix.RLIMIT_CORE, &none),
		unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0),
	)
}

// writeFile replaces a small file so that after a crash either the old or the
// new content is there.
func writeFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncFolder(filepath.Dir(path))
}

// syncFolder makes new and removed names in a folder durable.
func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

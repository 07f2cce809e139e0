package openstack

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Dial connects to an address inside the lab's network, where all services
// listen on 127.0.0.1 at their usual ports. A socket belongs to the namespace
// in which it was made, so only this call has to be there.
func (l *Lab) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("dial %s in the lab: %w", address, err)
	}
	defer func() { _ = home.Close() }()
	if err := unix.Setns(int(l.net.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("dial %s: enter the lab's network: %w", address, err)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		// The thread stays locked and ends with its goroutine: no other may run on it.
		return nil, fmt.Errorf("dial %s: leave the lab's network: %w", address, back)
	}
	runtime.UnlockOSThread()
	return conn, err
}

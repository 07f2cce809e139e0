package nodeagent

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// neighbours knows the pods on this node: their addresses, and which
// connections come out of their network namespaces.
//
// Only the burst's own gang holds devices on a burst node, so the pods that the
// machine lists are the gang's.
type neighbours struct {
	proc string // usually /proc

	mu      sync.Mutex
	pods    map[netip.Addr][]int // the processes in the pods' namespaces
	version int                  // grows when a pod comes, goes or is known better
}

func (n *neighbours) set(pods []Pod) {
	found := map[netip.Addr][]int{}
	for _, p := range pods {
		if a, err := netip.ParseAddr(p.IP); err == nil && p.Finished.IsZero() {
			found[a.Unmap()] = append(found[a.Unmap()], p.Sandbox)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !maps.EqualFunc(found, n.pods, slices.Equal) {
		n.pods = found
		n.version++
	}
}

// local says whether a client is on this node.
func (n *neighbours) local(a netip.Addr) bool {
	a = a.Unmap()
	if a.IsLoopback() {
		return true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	_, known := n.pods[a]
	return known
}

// peer is what is known of one connection. Which namespace its other end lies
// in never changes.
type peer struct {
	mu    sync.Mutex
	own   bool
	tried int // version of the neighbours that it was looked for among
}

type peerKey struct{}

// withPeer gives each connection of a server room for what is known of it.
func withPeer(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, &peer{})
}

// own says whether a request came out of the network namespace of a pod of the
// burst's own gang, which is not the host's. An address alone would not say so:
// the kernel's table of sockets in that namespace must hold the other end of
// this very connection. What can't be read is no.
func (n *neighbours) own(r *http.Request) bool {
	p, ok := r.Context().Value(peerKey{}).(*peer)
	here, hereOK := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if !ok || !hereOK || err != nil {
		return false
	}
	n.mu.Lock()
	sandboxes, version := n.pods[from.Addr().Unmap()], n.version
	n.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.own || p.tried == version {
		return p.own
	}
	p.tried = version
	for _, pid := range sandboxes {
		if held, err := n.holds(pid, from, here.AddrPort()); err == nil && held {
			p.own = true
		}
	}
	return p.own
}

// holds says whether the network namespace of a process, if it is not the
// agent's own, has an established connection between two ends.
func (n *neighbours) holds(pid int, from, to netip.AddrPort) (bool, error) {
	dir := filepath.Join(n.proc, strconv.Itoa(pid))
	theirs, err := os.Readlink(filepath.Join(dir, "ns", "net"))
	if err != nil {
		return false, fmt.Errorf("network namespace of process %d: %w", pid, err)
	}
	ours, err := os.Readlink(filepath.Join(n.proc, "self", "ns", "net"))
	if err != nil {
		return false, fmt.Errorf("own network namespace: %w", err)
	}
	if pid <= 0 || theirs == ours {
		return false, nil
	}
	for _, table := range []string{"tcp", "tcp6"} {
		held, err := tableHolds(filepath.Join(dir, "net", table), from, to)
		if held || err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
			return held, err
		}
	}
	return false, nil
}

// tableHolds looks through a table of sockets as proc_pid_net(5) has it:
// number, local end, remote end, state, and more.
func tableHolds(path string, from, to netip.AddrPort) (bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return false, fmt.Errorf("table of sockets: %w", err)
	}
	defer file.Close()
	const established = "01"
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || fields[3] != established {
			continue
		}
		local, localErr := readEnd(fields[1])
		remote, remoteErr := readEnd(fields[2])
		if localErr == nil && remoteErr == nil && local == unmapped(from) && remote == unmapped(to) {
			return true, nil
		}
	}
	return false, lines.Err()
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// readEnd reads an address as the kernel writes it: words of 32 bits in the
// machine's own order, as hex, and the port.
func readEnd(s string) (netip.AddrPort, error) {
	words, port, _ := strings.Cut(s, ":")
	raw, err := hex.DecodeString(words)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("address %q: %w", s, err)
	}
	for i := 0; i+4 <= len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	addr, ok := netip.AddrFromSlice(raw)
	p, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil {
		return netip.AddrPort{}, fmt.Errorf("address %q is none", s)
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(p)), nil
}

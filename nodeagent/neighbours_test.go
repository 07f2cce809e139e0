package nodeagent

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// podArg makes this test binary a pod in a network namespace of its own: it
// hands out a listener there on descriptor 3 and asks an URL of it for each
// line that it reads.
const podArg = "a-pod-of-the-test"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == podArg {
		if err := bePod(); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func bePod() error {
	if err := loopbackUp(); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	if err := unix.Sendmsg(3, []byte("l"), unix.UnixRights(int(file.Fd())), nil, 0); err != nil {
		return err
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		answer, err := ask(context.Background(), http.DefaultClient, l.Addr().String())
		if err != nil {
			return err
		}
		fmt.Println(answer)
	}
	return nil
}

func ask(ctx context.Context, c *http.Client, addr string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr, nil)
	if err != nil {
		return "", err
	}
	resp, err := c.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo)
}

// testPod is a pod whose listener is served by this process.
type testPod struct {
	t    *testing.T
	pid  int
	l    net.Listener
	in   io.Writer
	said *bufio.Scanner
}

func startPod(t *testing.T) testPod {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	theirs := os.NewFile(uintptr(pair[1]), "pod")
	cmd := exec.CommandContext(t.Context(), os.Args[0], podArg)
	cmd.ExtraFiles, cmd.Stderr = []*os.File{theirs}, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close()
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	return testPod{t: t, pid: cmd.Process.Pid, l: receiveListener(t, pair[0]), in: in, said: bufio.NewScanner(out)}
}

func receiveListener(t *testing.T, from int) net.Listener {
	t.Helper()
	space := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(from, make([]byte, 1), space, 0)
	if err != nil || n == 0 {
		t.Fatalf("no listener from the pod: %v; is /proc/sys/user/max_net_namespaces 0?", err)
	}
	messages, err := unix.ParseSocketControlMessage(space[:n])
	if err != nil {
		t.Fatal(err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fds[0]), "listener")
	defer file.Close()
	l, err := net.FileListener(file)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// asks lets the pod send one request out of its namespace.
func (p testPod) asks() string {
	p.t.Helper()
	if _, err := io.WriteString(p.in, "ask\n"); err != nil || !p.said.Scan() {
		p.t.Fatalf("the pod does not answer: %v, %v", err, p.said.Err())
	}
	return p.said.Text()
}

// serveOwn tells each client whether it is one of the gang's own.
func serveOwn(t *testing.T, n *neighbours, l net.Listener) {
	t.Helper()
	s := &http.Server{ReadHeaderTimeout: time.Minute, ConnContext: withPeer, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, n.own(r)) // a client that is gone is the test's failure
	})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
}

// Pods are told apart by the kernel's own table of the sockets in their network
// namespace. All of them have the address 127.0.0.1 here, so that nothing else
// could.
func TestOwnPodsAreToldApartByTheirNamespace(t *testing.T) {
	n := &neighbours{proc: "/proc"}
	gang, other := startPod(t), startPod(t)
	serveOwn(t, n, gang.l)
	serveOwn(t, n, other.l)
	host, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveOwn(t, n, host)
	expect := func(when string, wantGang, wantOther, wantHost bool) {
		t.Helper()
		hosts, err := ask(t.Context(), http.DefaultClient, host.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		got := []string{gang.asks(), other.asks(), hosts}
		want := []string{fmt.Sprint(wantGang), fmt.Sprint(wantOther), fmt.Sprint(wantHost)}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%s: gang, other, host are own: %v, want %v", when, got, want)
		}
	}
	const here = "127.0.0.1"
	expect("no pod known", false, false, false)
	n.set([]Pod{{IP: "10.0.0.9", Sandbox: gang.pid}})
	expect("the gang's pod has another address", false, false, false)
	n.set([]Pod{{IP: here}})
	expect("its namespace is not known", false, false, false)
	n.set([]Pod{{IP: here, Sandbox: os.Getpid()}})
	expect("it has the host's network", false, false, false)
	n.set([]Pod{{IP: here, Sandbox: gang.pid}, {IP: here, Sandbox: os.Getpid()}})
	expect("the gang's pod is known, on connections that are there", true, false, false)
	n.set([]Pod{{IP: here, Sandbox: other.pid}})
	http.DefaultClient.CloseIdleConnections()
	if got := other.asks(); got != "true" {
		t.Errorf("the other, now of the gang: %s", got)
	}
	n.set([]Pod{{IP: here, Sandbox: 1 << 30}})
	if got, err := ask(t.Context(), http.DefaultClient, host.Addr().String()); got != "false" || err != nil {
		t.Errorf("a process that does not exist: %s, %v", got, err)
	}
}

func TestEndsAreReadAsTheKernelWritesThem(t *testing.T) {
	for text, want := range map[string]string{
		"0100007F:1F90":                         "127.0.0.1:8080",
		"B80D01200000000067452301EFCDAB89:0050": "[2001:db8::123:4567:89ab:cdef]:80",
		"0000000000000000FFFF00000100007F:0001": "127.0.0.1:1", // a client of IPv4 at a socket of IPv6
	} {
		if got, err := readEnd(text); err != nil || got != netip.MustParseAddrPort(want) {
			t.Errorf("%s: %v, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0100007F", "0100007F:", "01:1F90", "xx00007F:1F90", "0100007F:11F90"} {
		if got, err := readEnd(text); err == nil {
			t.Errorf("%q: %v, want an error", text, got)
		}
	}
}

// Another connection of the same pod, or one that is not up, is no evidence.
func TestATableHoldsThatVeryConnection(t *testing.T) {
	table := filepath.Join(t.TempDir(), "tcp")
	text := "  sl  local_address rem_address   st tx_queue\n" +
		"   0: 0900000A:9C40 014DFEA9:0050 01 00000000:00000000\n" + // 10.0.0.9:40000 to 169.254.77.1:80
		"   1: 0900000A:9C41 014DFEA9:0050 06 00000000:00000000\n" // the next, which has ended
	if err := os.WriteFile(table, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		from, to string
		want     bool
	}{
		"that one":          {"10.0.0.9:40000", "169.254.77.1:80", true},
		"seen as IPv6":      {"[::ffff:10.0.0.9]:40000", "169.254.77.1:80", true},
		"from another port": {"10.0.0.9:40002", "169.254.77.1:80", false},
		"from another pod":  {"10.0.0.8:40000", "169.254.77.1:80", false},
		"to another server": {"10.0.0.9:40000", "169.254.77.2:80", false},
		"one that ended":    {"10.0.0.9:40001", "169.254.77.1:80", false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tableHolds(table, netip.MustParseAddrPort(tt.from), netip.MustParseAddrPort(tt.to))
			if err != nil || got != tt.want {
				t.Errorf("%v, %v, want %v", got, err, tt.want)
			}
		})
	}
}

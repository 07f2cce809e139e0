package nodeagent

import (
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"spillway.dev/spillway/nodeagent/link"
)

// cases: E1 LeastAuthority#157, boot2docker#469 (a node whose clock is off is not ready)
func TestEvidence(t *testing.T) {
	gpu := Device{ID: "gpu-0", Resource: "nvidia.com/gpu", Model: "H200", Healthy: true}
	sick := Device{ID: "gpu-1", Resource: "nvidia.com/gpu", Model: "H200"}
	near := link.Offset{Known: true, Ahead: 40 * time.Millisecond, Error: 10 * time.Millisecond}
	tests := map[string]struct {
		spoil func(*looker, *machineOf, *link.Offset)
		gate  string
		want  string // what was seen; empty: all is good
	}{
		"all is well":          {func(*looker, *machineOf, *link.Offset) {}, "", ""},
		"no contact yet":       {func(_ *looker, _ *machineOf, c *link.Offset) { *c = link.Offset{} }, "clock", "not compared yet"},
		"a clock 2 s ahead":    {func(_ *looker, _ *machineOf, c *link.Offset) { c.Ahead = 2 * time.Second }, "clock", "2s ahead"},
		"a clock hardly known": {func(_ *looker, _ *machineOf, c *link.Offset) { c.Ahead, c.Error = time.Hour, 2*time.Hour }, "clock", "1h0m0s ahead"},
		"a clock 2 s behind":   {func(_ *looker, _ *machineOf, c *link.Offset) { c.Ahead = -2 * time.Second }, "clock", "-2s ahead"},
		"swap":                 {func(l *looker, _ *machineOf, _ *link.Offset) { l.proc = "testproc" }, "swap", "/dev/vdb"},
		"swap that is unknown": {func(l *looker, _ *machineOf, _ *link.Offset) { l.proc = "/nowhere" }, "swap", "no such file"},
		"key memory not locked": {
			func(l *looker, _ *machineOf, _ *link.Offset) { l.keyLock = errors.New("not permitted") }, "key memory", "not locked: not permitted",
		},
		"no disk":              {func(l *looker, _ *machineOf, _ *link.Offset) { l.state = "/nowhere" }, "disk", "no such file"},
		"a device too few":     {func(l *looker, _ *machineOf, _ *link.Offset) { l.devices = 2 }, "gpus", "1 healthy of 1 (H200), 2 promised"},
		"one of two is sick":   {func(_ *looker, m *machineOf, _ *link.Offset) { m.devices = append(m.devices, sick) }, "gpus", "1 healthy of 2"},
		"devices of other use": {func(l *looker, _ *machineOf, _ *link.Offset) { l.resource = "amd.com/gpu" }, "gpus", "0 healthy of 0"},
		"no list of devices":   {func(_ *looker, m *machineOf, _ *link.Offset) { m.broken = errors.New("no socket") }, "gpus", "no socket"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m := &machineOf{devices: []Device{gpu}}
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "swaps"), []byte("Filename Type Size Used Priority\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			l := looker{machine: m, state: dir, proc: dir, resource: "nvidia.com/gpu", devices: 1, wall: time.Now}
			clock := near
			tt.spoil(&l, m, &clock)
			if l.proc == "testproc" {
				l.proc = t.TempDir()
				list := "Filename Type Size Used Priority\n/dev/vdb partition 100 0 -2\n"
				if err := os.WriteFile(filepath.Join(l.proc, "swaps"), []byte(list), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, e := range l.look(t.Context(), clock).Evidence {
				if e.Gate == "core dumps" { // the test itself may leave some
					continue
				}
				if e.OK == (e.Gate == tt.gate) || !(e.OK || strings.Contains(e.Seen, tt.want)) {
					t.Errorf("%s: ok %t, seen %q", e.Gate, e.OK, e.Seen)
				}
				if e.From == "" || e.At.IsZero() {
					t.Errorf("%s: not said where or when it was read", e.Gate)
				}
			}
		})
	}
}

func TestReadyNeedsEvidence(t *testing.T) {
	if (link.Ready{}).OK() {
		t.Error("ready without evidence")
	}
}

func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "machine.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	mux := http.NewServeMux()
	mux.HandleFunc("GET /pods", func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(`[{"uid":"u","gpus":["gpu-0"],"started":"2026-01-01T00:00:00Z","unknown":1}]`)) //nolint:errcheck // a test's answer
	})
	mux.HandleFunc("GET /devices", func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(strings.Repeat(" ", maxListing+1))) //nolint:errcheck // a test's answer
	})
	mux.HandleFunc("POST /stop", func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.URL.Path)
		w.WriteHeader(http.StatusAccepted)
	})
	mux.HandleFunc("POST /poweroff", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "stuck", 500) })
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go server.Serve(l)   //nolint:errcheck // ends with the test
	defer server.Close() //nolint:errcheck // ends with the test
	for _, address := range []string{path, "unix:" + path, "unix://" + path} {
		s, err := Dial(address)
		if err != nil {
			t.Fatal(err)
		}
		pods, err := s.Pods(t.Context())
		if err != nil || len(pods) != 1 || pods[0].UID != "u" || pods[0].Started.IsZero() {
			t.Errorf("%s: pods %+v, %v", address, pods, err)
		}
	}
	s, err := Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Devices(t.Context()); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("a listing without end: %v", err)
	}
	if err := s.StopPods(t.Context(), time.Second, "r"); err != nil || len(got) != 1 {
		t.Errorf("stop: %v", err)
	}
	if err := s.PowerOff(t.Context(), "r"); err == nil || !strings.Contains(err.Error(), "stuck") {
		t.Errorf("power off: %v", err)
	}
	if _, err := Dial(""); err == nil {
		t.Error("an empty address was taken")
	}
	gone, err := Dial(filepath.Join(t.TempDir(), "none"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gone.Pods(t.Context()); err == nil {
		t.Error("a socket that is not there gave pods")
	}
}

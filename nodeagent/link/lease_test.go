package link

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func leaseOf(node string) Lease {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	return Lease{Burst: "burst-1", Node: node, Serial: 3, Issued: at, Soft: at.Add(25 * time.Minute), Hard: at.Add(30 * time.Minute)}
}

func TestLease(t *testing.T) {
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	good, err := SignLease(key, leaseOf("node-a"))
	if err != nil {
		t.Fatal(err)
	}
	raw := func(purpose, payload string) SignedLease {
		return SignedLease{Payload: []byte(payload), Signature: ed25519.Sign(key, []byte(purpose+payload))}
	}
	later := bytes.Replace(good.Payload, []byte("12:30"), []byte("23:30"), 1)
	tests := map[string]struct {
		pub   ed25519.PublicKey
		lease SignedLease
		node  string
		want  error
	}{
		"as signed":               {pub, good, "node-a", nil},
		"another node":            {pub, good, "node-b", ErrLeaseOther},
		"another key":             {other, good, "node-a", ErrLeaseSignature},
		"no key":                  {nil, good, "node-a", ErrLeaseSignature},
		"a later hard end":        {pub, SignedLease{later, good.Signature}, "node-a", ErrLeaseSignature},
		"nothing":                 {pub, SignedLease{}, "node-a", ErrLeaseSignature},
		"signed for another use":  {pub, raw("spillway wipe proof v1\n", string(good.Payload)), "node-a", ErrLeaseSignature},
		"an unknown field":        {pub, raw(leasePurpose, `{"burst":"b","node":"node-a","serial":1,"forever":true}`), "node-a", ErrLeaseMalformed},
		"two leases in one":       {pub, raw(leasePurpose, string(good.Payload)+string(good.Payload)), "node-a", ErrLeaseMalformed},
		"no serial":               {pub, raw(leasePurpose, strings.Replace(string(good.Payload), `"serial":3`, `"serial":0`, 1)), "node-a", ErrLeaseMalformed},
		"hard before soft":        {pub, raw(leasePurpose, strings.Replace(string(good.Payload), "12:30", "12:10", 1)), "node-a", ErrLeaseMalformed},
		"an expired lease, opens": {pub, good, "node-a", nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			l, err := OpenLease(tt.pub, tt.lease, tt.node)
			if !errors.Is(err, tt.want) || (tt.want == nil && err != nil) {
				t.Fatalf("OpenLease = %v, want %v", err, tt.want)
			}
			if diff := cmp.Diff(leaseOf("node-a"), l); err == nil && diff != "" {
				t.Errorf("lease (-want +got):\n%s", diff)
			}
		})
	}
	for name, spoil := range map[string]func(*Lease){
		"no burst": func(l *Lease) { l.Burst = "" }, "no time": func(l *Lease) { l.Soft = time.Time{} },
		"serial 0": func(l *Lease) { l.Serial = 0 }, "issued late": func(l *Lease) { l.Issued = l.Hard.Add(1) },
	} {
		t.Run("not signed: "+name, func(t *testing.T) {
			l := leaseOf("node-a")
			spoil(&l)
			if _, err := SignLease(key, l); !errors.Is(err, ErrLeaseMalformed) {
				t.Errorf("SignLease = %v", err)
			}
		})
	}
}

func TestSealedKey(t *testing.T) {
	mine, err := NewNodeKey()
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewNodeKey()
	if err != nil {
		t.Fatal(err)
	}
	data := [32]byte{1, 2, 3}
	sealed, err := SealKey(mine.Public(), "burst-1", "node-a", data)
	if err != nil {
		t.Fatal(err)
	}
	if !sealed.For(mine.Public()) || sealed.For(other.Public()) {
		t.Error("For does not tell whose key it is")
	}
	if bytes.Contains(sealed.Sealed, data[:8]) {
		t.Error("the sealed key shows the key")
	}
	bent := SealedKey{To: sealed.To, Sealed: bytes.Clone(sealed.Sealed)}
	bent.Sealed[len(bent.Sealed)-1] ^= 1
	tests := map[string]struct {
		key         *NodeKey
		sealed      SealedKey
		burst, node string
		want        error
	}{
		"as sealed":       {mine, sealed, "burst-1", "node-a", nil},
		"another process": {other, sealed, "burst-1", "node-a", ErrSealedKey},
		"another burst":   {mine, sealed, "burst-2", "node-a", ErrSealedKey},
		"another node":    {mine, sealed, "burst-1", "node-b", ErrSealedKey},
		"shifted names":   {mine, sealed, "burst-1n", "ode-a", ErrSealedKey},
		"a changed bit":   {mine, bent, "burst-1", "node-a", ErrSealedKey},
		"nothing":         {mine, SealedKey{}, "burst-1", "node-a", ErrSealedKey},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := tt.key.Open(tt.sealed, tt.burst, tt.node)
			if !errors.Is(err, tt.want) || (tt.want == nil && err != nil) {
				t.Fatalf("Open = %v, want %v", err, tt.want)
			}
			if err == nil && !bytes.Equal(got, data[:]) {
				t.Error("the key that opens is not the one that was sealed")
			}
		})
	}
	if _, err := SealKey([]byte("not a key"), "b", "n", data); err == nil {
		t.Error("a key was sealed to something that is no public key")
	}
}

func TestParseJoin(t *testing.T) {
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := SignLease(key, leaseOf("node-a"))
	if err != nil {
		t.Fatal(err)
	}
	full := Join{
		NodeName: "node-a", Burst: "burst-1", Controller: "127.0.0.1:1", ControllerCA: []byte("PEM"),
		Gate: "https://gate", Store: "s3:9000", Lease: signed, LeaseKey: pub,
	}
	tests := map[string]struct {
		spoil func(*Join)
		want  string
	}{
		"whole":                {func(*Join) {}, ""},
		"on-prem needs less":   {func(j *Join) { *j = Join{NodeName: "n", Controller: "c:1", ControllerCA: []byte("PEM")} }, ""},
		"no name":              {func(j *Join) { j.NodeName = "" }, "lacks nodeName"},
		"no lease":             {func(j *Join) { j.Lease = SignedLease{} }, "lacks lease"},
		"no gate":              {func(j *Join) { j.Gate = "" }, "lacks gate"},
		"half a lease key":     {func(j *Join) { j.LeaseKey = pub[:16] }, "lease key has 16 bytes"},
		"no controller's CA":   {func(j *Join) { j.ControllerCA = nil }, "lacks controllerCA"},
		"no controller at all": {func(j *Join) { j.Controller = "" }, "lacks controller"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			j := full
			tt.spoil(&j)
			data := mustJSON(t, j)
			got, err := ParseJoin(data)
			if tt.want == "" {
				if diff := cmp.Diff(j, got); err != nil || diff != "" {
					t.Errorf("ParseJoin: %v\n%s", err, diff)
				}
			} else if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("ParseJoin = %v, want %q", err, tt.want)
			}
		})
	}
	for name, data := range map[string]string{"no JSON": "#cloud-config", "more behind it": string(mustJSON(t, full)) + "x"} {
		t.Run(name, func(t *testing.T) {
			if _, err := ParseJoin([]byte(data)); err == nil {
				t.Error("accepted")
			}
		})
	}
}

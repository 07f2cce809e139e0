package wipe

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// certificateOf builds a certificate in which everything is proven.
type certificateOf Certificate

func provenCertificate(t *testing.T) certificateOf {
	t.Helper()
	pub, key := keyPair(t)
	signed, err := Sign(key, Proof(completeProof()))
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 3, 1, 12, 30, 0, 0, time.UTC)
	return certificateOf(Certificate{
		ID: "cert-1", Burst: "burst-1", Tenant: "team-vision", WorkloadUIDs: []string{"job-1"},
		Standard: Standard, Classification: "confidential", Operator: "spillway", SignedBy: "certificates-1", IssuedAt: at,
		Media:    []Media{{Provider: "fake-a", ServerID: "m-1", VolumeIDs: []string{"v-1"}, Type: "virtual disk", Areas: []string{"/disk/sealed"}}},
		Keys:     []Key{{ID: "dek-1", Algorithm: "AES-256-GCM", GeneratedAt: at, WrappedBy: KEK{KEKID: "kek-1"}, DestroyedAt: at, DestroyMethod: "version deleted", Proven: true}},
		NodeAcks: []NodeAck{{Node: "node-1", Signed: &signed, ProofKey: pub}},
		Staging:  Staging{Bucket: "stage-1", ObjectsDeleted: 9, EmptyPasses: 2, FinalListSHA256: "cd", DeletedBucketAt: at},
		Provider: ProviderDeletion{ServerDeletedAt: at, VolumeDeletedAt: at, Confirmations: []string{"list by tag: empty"}},
		Verification: Verification{
			Method: "unwrap a canary key", Tool: "spillway", Version: "1", At: at,
			CanaryUnwrap: CanaryRefused, CanarySHA256: "ef", CanaryControl: true, LiveUnwrap: true,
		},
	})
}

func (c certificateOf) change(f func(*Certificate)) certificateOf {
	c.Keys, c.NodeAcks, c.Media = slices.Clone(c.Keys), slices.Clone(c.NodeAcks), slices.Clone(c.Media)
	f((*Certificate)(&c))
	return c
}

func TestCertificateLevel(t *testing.T) {
	pub, key := keyPair(t)
	proven := provenCertificate(t)
	ack := func(p proofOf) NodeAck {
		signed, err := Sign(key, Proof(p))
		if err != nil {
			t.Fatal(err)
		}
		return NodeAck{Node: "node-1", Signed: &signed, ProofKey: pub}
	}
	tests := map[string]struct {
		given certificateOf
		want  string // the reason, empty for certified
	}{
		"everything proven": {proven, ""},
		"nothing was staged": {
			proven.change(func(c *Certificate) { c.Staging = Staging{} }), "",
		},
		"the caller's level counts for nothing": {
			proven.change(func(c *Certificate) { c.Level, c.Keys[0].Proven = Certified, false }),
			"key dek-1: version deleted, destruction can't be proven",
		},
		"a key file that was deleted": {
			proven.change(func(c *Certificate) { c.Keys[0].Proven, c.Keys[0].DestroyMethod = false, "file deleted" }),
			"key dek-1: file deleted, destruction can't be proven",
		},
		"proven and doubted at once": {
			proven.change(func(c *Certificate) { c.Keys[0].Doubts = []string{"the key could be exported"} }),
			"key dek-1: version deleted; the key could be exported, destruction can't be proven",
		},
		"the key was not destroyed": {
			proven.change(func(c *Certificate) { c.Keys[0].DestroyedAt = time.Time{} }), "key dek-1 was not destroyed",
		},
		"a node that vanished": {
			proven.change(func(c *Certificate) {
				c.NodeAcks[0] = NodeAck{Node: "node-1", Missing: true, Reason: "no contact since 12:00"}
			}),
			"node node-1 gave no proof: no contact since 12:00; its memory is not attested",
		},
		"a node whose wipe was partial": {
			proven.change(func(c *Certificate) { c.NodeAcks[0] = ack(completeProof().failed(StepPodsStopped)) }),
			`node node-1: step "pods stopped" failed: it did not work`,
		},
		"a proof of another burst": {
			proven.change(func(c *Certificate) {
				c.NodeAcks[0] = ack(completeProof().change(func(p *Proof) { p.Burst = "burst-2" }))
			}),
			"node node-1: its proof speaks of node node-1 and burst burst-2",
		},
		"a proof under another key": {
			proven.change(func(c *Certificate) { c.NodeAcks[0].ProofKey = pub }),
			"node node-1: verify wipe proof: signature does not match",
		},
		"one proof for two machines": {
			proven.change(func(c *Certificate) { c.Media = append(c.Media, Media{Provider: "fake-a", ServerID: "m-2"}) }),
			"2 machines, but only 1 node acknowledgements",
		},
		"the same proof twice": {
			proven.change(func(c *Certificate) {
				c.Media = append(c.Media, Media{ServerID: "m-2"})
				c.NodeAcks = append(c.NodeAcks, c.NodeAcks[0])
			}),
			"node node-1 is acknowledged twice",
		},
		"cleartext may lie on a disk": {
			proven.change(func(c *Certificate) { c.PlaintextOnMedia = []string{"emptyDir"} }),
			"cleartext may have rested in emptyDir, which key destruction does not reach",
		},
		"only one empty listing": {
			proven.change(func(c *Certificate) { c.Staging.EmptyPasses = 1 }),
			"staging bucket stage-1: 1 complete empty listings in a row, two are needed",
		},
		"the bucket is still there": {
			proven.change(func(c *Certificate) { c.Staging.DeletedBucketAt = time.Time{} }),
			"staging bucket stage-1: its deletion is not confirmed",
		},
		"a listing was truncated": {
			proven.change(func(c *Certificate) { c.Provider.ListIncomplete = true }),
			"a listing at the provider failed or was truncated",
		},
		"a volume is left": {
			proven.change(func(c *Certificate) { c.Provider.LeftBehind = []string{"volume v-1"} }),
			"the provider still lists volume v-1",
		},
		"a snapshot is left": { // cases: F10 OpenStack GHSA-q3rw
			proven.change(func(c *Certificate) { c.Provider.LeftBehind = []string{"snapshot s-1 of volume v-1"} }),
			"the provider still lists snapshot s-1 of volume v-1",
		},
		"nobody confirmed the deletion": {
			proven.change(func(c *Certificate) { c.Provider.Confirmations = nil }),
			"the provider has not confirmed that the machines are gone",
		},
		"the canary key still unwraps": {
			proven.change(func(c *Certificate) { c.Verification.CanaryUnwrap = "opened" }),
			`the canary key's unwrapping was not refused: "opened"`,
		},
		"the canary key was never tried before": {
			proven.change(func(c *Certificate) { c.Verification.CanaryControl = false }),
			"the canary key was never seen to unwrap before, so its refusal shows nothing",
		},
		"nothing was seen to unwrap after the refusal": {
			proven.change(func(c *Certificate) { c.Verification.LiveUnwrap = false }),
			"no living key was seen to unwrap at the same time, so the refusal may be the key service's silence",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			signed, err := SignCertificate(key, Certificate(tt.given))
			if err != nil {
				t.Fatal(err)
			}
			c, err := VerifyCertificate(pub, signed)
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			level := Certified
			if tt.want != "" {
				want, level = []string{tt.want}, Unproven
			}
			if diff := cmp.Diff(want, c.Unproven); diff != "" || c.Level != level {
				t.Errorf("level %q, want %q; reasons (-want +got):\n%s", c.Level, level, diff)
			}
			for _, r := range c.Unproven {
				if !strings.Contains(c.Text(), r) {
					t.Errorf("the text hides %q:\n%s", r, c.Text())
				}
			}
		})
	}
}

func TestVerifyCertificate(t *testing.T) {
	pub, key := keyPair(t)
	proven := Certificate(provenCertificate(t))
	proven.Tenant = "R&D <vision>"
	signed, err := SignCertificate(key, proven)
	if err != nil {
		t.Fatal(err)
	}
	lie := Certificate(provenCertificate(t).change(func(c *Certificate) { c.Keys = nil }))
	lie.Level = Certified
	payload, err := marshal(lie)
	if err != nil {
		t.Fatal(err)
	}
	other, _ := keyPair(t)
	tests := map[string]struct {
		pub  ed25519.PublicKey
		cert SignedCertificate
		want error
	}{
		"as signed":                  {pub, signed, nil},
		"indented for people":        {pub, SignedCertificate{indent(t, signed.Certificate), signed.Signature}, nil},
		"with plain characters":      {pub, SignedCertificate{bytes.ReplaceAll(signed.Certificate, []byte(`\u0026`), []byte("&")), signed.Signature}, nil},
		"a changed value":            {pub, SignedCertificate{bytes.Replace(signed.Certificate, []byte("job-1"), []byte("job-2"), 1), signed.Signature}, ErrSignature},
		"another key":                {other, signed, ErrSignature},
		"a level that does not hold": {pub, SignedCertificate{payload, sign(key, certificatePurpose, payload)}, ErrMalformed},
		"not JSON":                   {pub, SignedCertificate{[]byte("{"), signed.Signature}, ErrMalformed},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := VerifyCertificate(tt.pub, tt.cert); !errors.Is(err, tt.want) || (tt.want == nil && err != nil) {
				t.Errorf("VerifyCertificate = %v, want %v", err, tt.want)
			}
		})
	}
	a, err := signed.Hash()
	if err != nil {
		t.Fatal(err)
	}
	b, err := SignedCertificate{Certificate: indent(t, signed.Certificate)}.Hash()
	if err != nil || a != b || len(a) != 64 {
		t.Errorf("Hash = %s, indented %s, %v; want the same", a, b, err)
	}
	if _, err := SignCertificate(key, Certificate{ID: "c"}); !errors.Is(err, ErrMalformed) {
		t.Errorf("a certificate about no burst: %v", err)
	}
}

func indent(t *testing.T, raw []byte) json.RawMessage {
	t.Helper()
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

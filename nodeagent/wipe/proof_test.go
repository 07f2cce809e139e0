package wipe

import (
	"crypto/ed25519"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// proofOf builds a complete proof; each method returns a changed copy.
type proofOf Proof

func completeProof() proofOf {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	p := Proof{
		Burst: "burst-1", Node: "node-1", OrderID: "order-1", Cause: "ordered", At: at,
		Areas:        []Area{{Path: "/disk/sealed", Files: 3, Bytes: 300, Overwritten: 3, Empty: true}},
		FilesRemoved: 3, BytesRemoved: 300, KeyReceived: true, KeyDestroyed: true,
		Canary: CanaryUnwrap{OpenedBefore: true, SHA256: "ab"},
	}
	for _, name := range RequiredSteps() {
		p.Steps = append(p.Steps, Step{Name: name, OK: true, At: at})
	}
	return proofOf(p)
}

func (p proofOf) failed(name string) proofOf {
	p.Steps = slices.Clone(p.Steps)
	for i := range p.Steps {
		if p.Steps[i].Name == name {
			p.Steps[i].OK, p.Steps[i].Detail = false, "it did not work"
		}
	}
	return p
}

func (p proofOf) without(name string) proofOf {
	p.Steps = slices.DeleteFunc(slices.Clone(p.Steps), func(s Step) bool { return s.Name == name })
	return p
}

func (p proofOf) with(s Step) proofOf {
	p.Steps = append(slices.Clone(p.Steps), s)
	return p
}

func (p proofOf) change(f func(*Proof)) proofOf {
	p.Areas = slices.Clone(p.Areas)
	f((*Proof)(&p))
	return p
}

// cases: N54 ROCm/spur#661: a wipe has a level, with proof.
func TestLevel(t *testing.T) {
	tests := map[string]struct {
		given proofOf
		want  Level
	}{
		"every step done":                        {completeProof(), Complete},
		"a step failed":                          {completeProof().failed(StepFrontStopped), Partial},
		"a step was skipped":                     {completeProof().without(StepPodsStopped), Partial},
		"a failure is not hidden by a success":   {completeProof().with(Step{Name: StepAreaErased}), Partial},
		"a further step failed":                  {completeProof().with(Step{Name: "earlier agent process"}), Partial},
		"the area was not found empty":           {completeProof().change(func(p *Proof) { p.Areas[0].Empty = false }), Partial},
		"files were unlinked, not overwritten":   {completeProof().change(func(p *Proof) { p.Areas[0].Overwritten = 1 }), Partial},
		"no area was named":                      {completeProof().change(func(p *Proof) { p.Areas = nil }), Partial},
		"the key is gone, nothing was erased":    {completeProof().failed(StepAreaErased).change(func(p *Proof) { p.FilesRemoved = 0 }), KeyDestructionOnly},
		"the key step failed":                    {completeProof().failed(StepKeyZeroed), NotWiped},
		"the key is not said to be destroyed":    {completeProof().change(func(p *Proof) { p.KeyDestroyed = false }), NotWiped},
		"the canary still opens":                 {completeProof().change(func(p *Proof) { p.Canary.OpenedAfter = true }), NotWiped},
		"the canary had never opened":            {completeProof().change(func(p *Proof) { p.Canary.OpenedBefore = false }), NotWiped},
		"a node that never had a key":            {completeProof().change(func(p *Proof) { p.KeyReceived, p.Canary = false, CanaryUnwrap{} }), Complete},
		"nothing at all":                         {proofOf{}, NotWiped},
		"all steps, but said to be about no key": {completeProof().change(func(p *Proof) { p.KeyReceived, p.KeyDestroyed = false, false }), NotWiped},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := Proof(tt.given)
			if got := p.Level(); got != tt.want {
				t.Errorf("Level = %q, want %q; reasons %q", got, tt.want, p.Reasons())
			}
			if complete := p.Level() == Complete; complete != (len(p.Reasons()) == 0) {
				t.Errorf("level %q with reasons %q", p.Level(), p.Reasons())
			}
		})
	}
}

// Whatever a node writes into its proof, it is complete only when every
// required step is there and none failed.
func TestNeverCompleteWithoutEveryStep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Proof(completeProof())
		p.Steps = rapid.SliceOf(rapid.Custom(func(t *rapid.T) Step {
			return Step{Name: rapid.SampledFrom(append(RequiredSteps(), "other")).Draw(t, "name"), OK: rapid.IntRange(0, 5).Draw(t, "ok") > 0}
		})).Draw(t, "steps")
		p.KeyReceived = rapid.Bool().Draw(t, "received")
		p.Canary.OpenedAfter = rapid.Bool().Draw(t, "after")
		if p.Level() != Complete {
			return
		}
		for _, name := range RequiredSteps() {
			if !slices.ContainsFunc(p.Steps, func(s Step) bool { return s.Name == name && s.OK }) {
				t.Fatalf("complete without %q", name)
			}
		}
		if slices.ContainsFunc(p.Steps, func(s Step) bool { return !s.OK }) {
			t.Fatal("complete with a failed step")
		}
		if p.KeyReceived && p.Canary.OpenedAfter {
			t.Fatal("complete although the canary opens")
		}
	})
}

func keyPair(t *testing.T) (ed25519.PublicKey, ed25519.PrivateKey) {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return pub, key
}

func TestVerifyProof(t *testing.T) {
	pub, key := keyPair(t)
	other, _ := keyPair(t)
	good, err := Sign(key, Proof(completeProof()))
	if err != nil {
		t.Fatal(err)
	}
	nameless, err := Sign(key, Proof{Node: "n"})
	if err != nil {
		t.Fatal(err)
	}
	wrap := func(payload string) SignedProof {
		return SignedProof{Payload: []byte(payload), Signature: sign(key, proofPurpose, []byte(payload))}
	}
	tests := map[string]struct {
		pub   ed25519.PublicKey
		proof SignedProof
		want  error
	}{
		"as signed":                         {pub, good, nil},
		"another key":                       {other, good, ErrSignature},
		"no key":                            {nil, good, ErrSignature},
		"a changed byte":                    {pub, SignedProof{Payload: []byte(strings.Replace(string(good.Payload), "node-1", "node-2", 1)), Signature: good.Signature}, ErrSignature},
		"a signature for another purpose":   {pub, SignedProof{Payload: good.Payload, Signature: sign(key, certificatePurpose, good.Payload)}, ErrSignature},
		"no burst and no time":              {pub, nameless, ErrMalformed},
		"a field that this reader ignores":  {pub, wrap(`{"burst":"b","node":"n","at":"2026-01-01T00:00:00Z","level":"complete"}`), ErrMalformed},
		"a second statement behind the end": {pub, wrap(`{"burst":"b","node":"n","at":"2026-01-01T00:00:00Z"}{}`), ErrMalformed},
		"not JSON":                          {pub, wrap(`complete`), ErrMalformed},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Verify(tt.pub, tt.proof)
			if !errors.Is(err, tt.want) || (tt.want == nil && err != nil) {
				t.Errorf("Verify = %v, want %v", err, tt.want)
			}
		})
	}
}

func FuzzVerify(f *testing.F) {
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"burst":"b","node":"n","at":"2026-01-01T00:00:00Z"}`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		p, err := Verify(pub, SignedProof{Payload: payload, Signature: sign(key, proofPurpose, payload)})
		if err == nil && (p.Burst == "" || p.Node == "") {
			t.Errorf("accepted a proof about nothing: %s", payload)
		}
	})
}

package wipe

import (
	"fmt"
	"strings"
)

// assess computes the level of a certificate and everything that keeps it from
// being Certified. Each check looks at evidence, none at a claim.
func (c Certificate) assess() (Level, []string) {
	var reasons []string
	for _, part := range [][]string{
		c.unprovenKeys(), c.unprovenNodes(), c.unprovenMedia(), c.unprovenStaging(),
		c.unprovenProvider(), c.unprovenVerification(),
	} {
		reasons = append(reasons, part...)
	}
	if len(reasons) > 0 {
		return Unproven, reasons
	}
	return Certified, nil
}

func (c Certificate) unprovenKeys() []string {
	var reasons []string
	if len(c.Keys) == 0 {
		reasons = append(reasons, "no data key is named")
	}
	for _, k := range c.Keys {
		switch {
		case k.DestroyedAt.IsZero():
			reasons = append(reasons, fmt.Sprintf("key %s was not destroyed", k.ID))
		case !k.Proven || len(k.Doubts) > 0:
			why := strings.Join(append([]string{k.DestroyMethod}, k.Doubts...), "; ")
			reasons = append(reasons, fmt.Sprintf("key %s: %s, destruction can't be proven", k.ID, why))
		}
	}
	return reasons
}

func (c Certificate) unprovenNodes() []string {
	var reasons []string
	if len(c.NodeAcks) < len(c.Media) {
		reasons = append(reasons, fmt.Sprintf("%d machines, but only %d node acknowledgements", len(c.Media), len(c.NodeAcks)))
	}
	seen := map[string]bool{}
	for _, a := range c.NodeAcks {
		if seen[a.Node] {
			reasons = append(reasons, fmt.Sprintf("node %s is acknowledged twice", a.Node))
		}
		seen[a.Node] = true
		if a.Signed == nil || a.Missing {
			reasons = append(reasons, fmt.Sprintf("node %s gave no proof: %s; its memory is not attested", a.Node, a.Reason))
			continue
		}
		reasons = append(reasons, c.unprovenAck(a)...)
	}
	return reasons
}

// unprovenAck verifies a node's proof again: the certificate carries all that
// this takes.
func (c Certificate) unprovenAck(a NodeAck) []string {
	p, err := Verify(a.ProofKey, *a.Signed)
	if err != nil {
		return []string{fmt.Sprintf("node %s: %v", a.Node, err)}
	}
	if p.Burst != c.Burst || p.Node != a.Node {
		return []string{fmt.Sprintf("node %s: its proof speaks of node %s and burst %s", a.Node, p.Node, p.Burst)}
	}
	var reasons []string
	for _, r := range p.Reasons() {
		reasons = append(reasons, fmt.Sprintf("node %s: %s", a.Node, r))
	}
	return reasons
}

func (c Certificate) unprovenMedia() []string {
	var reasons []string
	if len(c.Media) == 0 {
		reasons = append(reasons, "no machine is named")
	}
	for _, area := range c.PlaintextOnMedia {
		reasons = append(reasons, fmt.Sprintf("cleartext may have rested in %s, which key destruction does not reach", area))
	}
	return reasons
}

func (c Certificate) unprovenStaging() []string {
	s := c.Staging
	switch {
	case s.Bucket == "":
		return nil // nothing was staged
	case s.EmptyPasses < 2:
		return []string{fmt.Sprintf("staging bucket %s: %d complete empty listings in a row, two are needed", s.Bucket, s.EmptyPasses)}
	case s.FinalListSHA256 == "" || s.DeletedBucketAt.IsZero():
		return []string{fmt.Sprintf("staging bucket %s: its deletion is not confirmed", s.Bucket)}
	default:
		return nil
	}
}

func (c Certificate) unprovenProvider() []string {
	var reasons []string
	if c.Provider.ServerDeletedAt.IsZero() || len(c.Provider.Confirmations) == 0 {
		reasons = append(reasons, "the provider has not confirmed that the machines are gone")
	}
	if c.Provider.ListIncomplete {
		reasons = append(reasons, "a listing at the provider failed or was truncated")
	}
	for _, part := range c.Provider.LeftBehind {
		reasons = append(reasons, fmt.Sprintf("the provider still lists %s", part))
	}
	for _, m := range c.Media {
		if len(m.VolumeIDs) > 0 && c.Provider.VolumeDeletedAt.IsZero() {
			reasons = append(reasons, fmt.Sprintf("machine %s: the deletion of its volumes is not confirmed", m.ServerID))
		}
	}
	return reasons
}

func (c Certificate) unprovenVerification() []string {
	v := c.Verification
	switch {
	case v.CanaryUnwrap != CanaryRefused:
		return []string{fmt.Sprintf("the canary key's unwrapping was not refused: %q", v.CanaryUnwrap)}
	case !v.CanaryControl:
		return []string{"the canary key was never seen to unwrap before, so its refusal shows nothing"}
	case !v.LiveUnwrap:
		return []string{"no living key was seen to unwrap at the same time, so the refusal may be the key service's silence"}
	case v.CanarySHA256 == "" || v.At.IsZero():
		return []string{"the negative decrypt test has no digest or no time"}
	default:
		return nil
	}
}

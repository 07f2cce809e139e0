package wipe

import (
	"fmt"
	"strings"
	"time"
)

// Text renders the certificate for people: one fact a line, the level first,
// then every reason that keeps it from being certified.
func (c Certificate) Text() string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-16s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("Certificate", "%s", c.ID)
	line("Level", "%s", c.Level)
	for _, r := range c.Unproven {
		line("", "- %s", r)
	}
	line("Burst", "%s, tenant %s, data class %s", c.Burst, c.Tenant, c.Classification)
	line("Workloads", "%s", strings.Join(c.WorkloadUIDs, ", "))
	line("Standard", "%s", c.Standard)
	for _, k := range c.Keys {
		line("Key", "%s (%s), wrapped by %s, destroyed %s: %s%s", k.ID, k.Algorithm, k.WrappedBy.text(),
			when(k.DestroyedAt), k.DestroyMethod, unless(k.Proven && len(k.Doubts) == 0, ", unproven"))
		if k.AuditRef != "" {
			line("", "the key service's own record: %s", k.AuditRef)
		}
	}
	for _, m := range c.Media {
		line("Machine", "%s at %s, %s, areas %s", m.ServerID, m.Provider, m.Type, strings.Join(m.Areas, ", "))
	}
	for _, a := range c.NodeAcks {
		line("Node", "%s: %s", a.Node, a.text())
	}
	if s := c.Staging; s.Bucket != "" {
		line("Staging", "%s: %d objects, %d versions, %d markers deleted, %d uploads aborted, %d empty passes, bucket gone %s",
			s.Bucket, s.ObjectsDeleted, s.VersionsDeleted, s.MarkersDeleted, s.UploadsAborted, s.EmptyPasses, when(s.DeletedBucketAt))
	}
	line("Provider", "machines gone %s; %s", when(c.Provider.ServerDeletedAt), strings.Join(c.Provider.Confirmations, "; "))
	v := c.Verification
	line("Verification", "%s with %s %s: canary key %s at %s; it opened before: %t; a living key still opened: %t", v.Method, v.Tool,
		v.Version, v.CanaryUnwrap, when(v.At), v.CanaryControl, v.LiveUnwrap)
	for _, n := range c.NotCovered {
		line("Not covered", "%s", n)
	}
	line("Issued", "%s by %s, signed with %s", when(c.IssuedAt), c.Operator, c.SignedBy)
	line("Previous", "%s", c.PrevHash)
	return b.String()
}

// text names the key-encryption key.
func (k KEK) text() string {
	if k.Version == "" {
		return k.KEKID
	}
	return k.KEKID + " version " + k.Version
}

// text says what a node's acknowledgement shows.
func (a NodeAck) text() string {
	if a.Signed == nil || a.Missing {
		return fmt.Sprintf("no proof (%s); node memory: not attested", a.Reason)
	}
	p, err := Verify(a.ProofKey, *a.Signed)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s; %d files, %d bytes erased %s; key destroyed: %t; canary opened before: %t, after: %t",
		p.Level(), p.FilesRemoved, p.BytesRemoved, when(p.At), p.KeyDestroyed, p.Canary.OpenedBefore, p.Canary.OpenedAfter)
}

func when(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format(time.RFC3339)
}

func unless(ok bool, s string) string {
	if ok {
		return ""
	}
	return s
}

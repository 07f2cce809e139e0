package link

import (
	"crypto/ed25519"
	"net/http"
	"slices"
	"time"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/nodeagent/wipe"
	"spillway.dev/spillway/quota"
)

const (
	maxName     = 512                  // bytes of any name, sentence or digest in a report
	maxObject   = 1024                 // bytes of an object key, as S3 allows
	maxParts    = 10_000               // parts of one multipart upload, as S3 allows
	maxEvidence = 64                   // entries of evidence
	maxAhead    = 24 * time.Hour       // how far in the future a usage record may end: a node with a wrong clock is told so, not cut off
	maxInterval = 366 * 24 * time.Hour // longest usage record
	wholeDevice = 840                  // shares of one device
)

// check says whether a report is one that this node may send. It looks at all
// that a rented node could use to harm others: whose report it is, how large
// it is, and whether its figures are possible. It does not believe them.
func (r Report) check(node, burst string, now time.Time) error {
	if r.Node != node {
		return refuse(http.StatusForbidden, "node %s may not report for node %q: a connection speaks for the node in its certificate only", node, r.Node)
	}
	if r.Burst != burst {
		return refuse(http.StatusForbidden, "node %s may not report for burst %q: it belongs to burst %q", node, r.Burst, burst)
	}
	if burst == "" && (len(r.Uploads) > 0 || r.Wipe != nil || r.KeyHeld) {
		return refuse(http.StatusForbidden, "on-prem node %s may report readiness and usage only: it has no burst", node)
	}
	if err := r.checkSizes(); err != nil {
		return err
	}
	for _, u := range r.Usage {
		if err := r.checkUsage(u, now); err != nil {
			return err
		}
	}
	for _, u := range r.Uploads {
		if !possible(u) {
			return refuse(http.StatusBadRequest, "node %s: an upload has no name, an impossible size or a field that is too long", node)
		}
	}
	return r.checkWipe()
}

func (r Report) checkSizes() error {
	bad := func(what string) error {
		return refuse(http.StatusBadRequest, "node %s: %s is out of range", r.Node, what)
	}
	c := r.Cache
	switch {
	case !short(maxName, r.BootID, r.Agent, r.Journal, r.Problem, r.UploadsDigest, r.Staged.ManifestSHA256, r.Staged.Problem):
		return bad("a text")
	case r.BootID == "":
		return bad("the boot id")
	case len(r.Usage) > MaxUsage || len(r.Uploads) > MaxUploads || len(r.Readiness.Evidence) > maxEvidence:
		return bad("the number of records")
	case r.Burst != "" && (len(r.HPKE) != 32 || len(r.ProofKey) != ed25519.PublicKeySize):
		return bad("a public key")
	case min(c.BytesStaged, c.BytesServed, c.BytesUpstream, c.BytesUploaded, c.NotModified, c.PassedThrough, c.Refused, c.Failed) < 0:
		return bad("a cache counter")
	case r.Lease < 0 || r.Staged.Objects < 0 || r.Staged.Of < 0 || r.Clock.Error < 0:
		return bad("a count")
	}
	for _, e := range r.Readiness.Evidence {
		if !short(maxName, e.Gate, e.Seen, e.From) {
			return bad("evidence")
		}
	}
	return nil
}

// checkUsage also keeps the node from choosing who pays.
func (r Report) checkUsage(u quota.Usage, now time.Time) error {
	switch {
	case u.Node != r.Node || u.Burst != r.Burst:
		return refuse(http.StatusForbidden, "node %s may not report usage of node %q and burst %q", r.Node, u.Node, u.Burst)
	case u.Tenant != "":
		return refuse(http.StatusForbidden, "node %s names tenant %q in its usage: the controller decides who pays", r.Node, u.Tenant)
	case u.Seq < 1 || u.Journal == "" || u.Boot == "" || u.PodUID == "" || u.Device == "":
		return refuse(http.StatusBadRequest, "node %s: usage record %d has no key, pod or device", r.Node, u.Seq)
	case u.Share < 1 || u.Share > wholeDevice:
		return refuse(http.StatusBadRequest, "node %s: usage record %d has a share of %d/%d", r.Node, u.Seq, u.Share, wholeDevice)
	case u.Start.IsZero() || u.End.Before(u.Start) || u.End.Sub(u.Start) > maxInterval || u.End.After(now.Add(maxAhead)):
		return refuse(http.StatusBadRequest, "node %s: usage record %d runs from %s to %s, which can't be", r.Node, u.Seq,
			u.Start.Format(time.RFC3339), u.End.Format(time.RFC3339))
	case !short(maxName, u.Boot, u.Journal, u.Namespace, u.PodUID, u.Owner, u.GPUModel, u.Device, u.Phase, u.Source):
		return refuse(http.StatusBadRequest, "node %s: usage record %d has a text that is too long", r.Node, u.Seq)
	default:
		return nil
	}
}

// checkWipe lets no proof in that another node or another burst made.
func (r Report) checkWipe() error {
	if r.Wipe == nil {
		return nil
	}
	p, err := wipe.Verify(r.ProofKey, *r.Wipe)
	if err != nil {
		return refuse(http.StatusForbidden, "node %s: %v", r.Node, err)
	}
	if p.Node != r.Node || p.Burst != r.Burst {
		return refuse(http.StatusForbidden, "node %s may not report a wipe of node %q and burst %q", r.Node, p.Node, p.Burst)
	}
	return nil
}

// possible says whether an upload could have happened. A size of -1 is a copy,
// of which the front saw no bytes.
func possible(u Upload) bool {
	return u.Bucket != "" && u.Key != "" && u.Size >= -1 && len(u.Parts) <= maxParts &&
		short(maxName, u.Bucket, u.SHA256, u.ETag) && short(maxObject, u.Key) &&
		!slices.ContainsFunc(u.Parts, func(p datasync.Part) bool { return p.Size < 0 || !short(maxName, p.SHA256) })
}

func short(limit int, texts ...string) bool {
	for _, t := range texts {
		if len(t) > limit {
			return false
		}
	}
	return true
}

package stager

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/s3"
)

// oldManifest is the manifest that lies in the staging bucket, if any.
type oldManifest struct {
	sealed   []byte
	manifest datasync.Manifest
}

// maxManifest bounds what is read back from a staging store, in bytes.
const maxManifest = 256 << 20

// readManifest reads back what an earlier run has published. One that is not
// ours to believe counts as none.
func (s *Stager) readManifest(ctx context.Context, m *mover) (oldManifest, error) {
	name := datasync.ManifestName(m.key, m.burst)
	there, ok := m.there[name]
	if !ok || there.Size > maxManifest {
		return oldManifest{}, nil
	}
	body, err := m.staging.Get(ctx, m.bucket, name)
	if errors.Is(err, s3.ErrNotFound) {
		return oldManifest{}, nil
	}
	if err != nil {
		return oldManifest{}, err
	}
	defer body.Close()
	sealed, err := io.ReadAll(io.LimitReader(body, there.Size+1)) // a longer one does not open
	if err != nil {
		return oldManifest{}, fmt.Errorf("read back the manifest of burst %s: %w", m.burst, err)
	}
	manifest, err := datasync.OpenManifest(sealed, m.burst, m.key, s.publicKey())
	if err != nil {
		s.cfg.Log.Warn("manifest in staging is written anew", "burst", m.burst, "err", err)
		return oldManifest{}, nil
	}
	return oldManifest{sealed, manifest}, nil
}

func digests(old oldManifest) map[datasync.ObjectID]string {
	known := map[datasync.ObjectID]string{}
	for _, o := range old.manifest.Objects {
		known[o.ID()] = o.SHA256
	}
	return known
}

// publish writes the manifest, unless the one that is there says the same and
// lasts long enough, and ends the run as done.
func (s *Stager) publish(ctx context.Context, job StageJob, m *mover, old oldManifest, objects []datasync.Object) error {
	now := s.cfg.Now().UTC()
	sealed, expires := old.sealed, old.manifest.Expires
	if old.sealed == nil || !sameObjects(old.manifest.Objects, objects) || old.manifest.Freshness != job.Freshness || expires.Before(s.expiry(job)) {
		expires = now.Add(min(max(job.Expires.Sub(now), time.Hour), urlLife) + time.Second).Truncate(time.Second)
		next := datasync.Manifest{Burst: m.burst, Made: now, Expires: expires, Objects: slices.Clone(objects), Freshness: job.Freshness}
		var err error
		if sealed, err = s.writeManifest(ctx, m, next); err != nil {
			return err
		}
	}
	url, err := m.staging.Presign(ctx, m.bucket, datasync.ManifestName(m.key, m.burst), expires.Sub(now))
	if err != nil {
		return err
	}
	sum := sha256.Sum256(sealed)
	m.run.update(func(p *Progress) {
		p.Done, p.Expires = true, expires
		p.ManifestURL, p.ManifestSHA256, p.ManifestKey = url, hex.EncodeToString(sum[:]), s.publicKey()
	})
	return nil
}

func (s *Stager) writeManifest(ctx context.Context, m *mover, manifest datasync.Manifest) ([]byte, error) {
	for i, o := range manifest.Objects {
		var err error
		if manifest.Objects[i].URL, err = m.staging.Presign(ctx, m.bucket, o.Staged, manifest.Expires.Sub(manifest.Made)); err != nil {
			return nil, err
		}
	}
	sealed, err := datasync.SealManifest(manifest, m.key, s.cfg.Signer, s.cfg.Random)
	if err != nil {
		return nil, err
	}
	name := datasync.ManifestName(m.key, m.burst)
	if err := m.staging.Put(ctx, m.bucket, name, bytes.NewReader(sealed), int64(len(sealed))); err != nil {
		return nil, err
	}
	return sealed, nil
}

// sameObjects compares two lists but for the presigned URLs.
func sameObjects(a, b []datasync.Object) bool {
	plain := func(all []datasync.Object) []byte {
		all = slices.Clone(all)
		for i := range all {
			all[i].URL = ""
		}
		text, err := json.Marshal(all)
		if err != nil {
			return nil // equal to nothing: the manifest is written anew
		}
		return text
	}
	x, y := plain(a), plain(b)
	return x != nil && bytes.Equal(x, y)
}

func (s *Stager) publicKey() ed25519.PublicKey { return s.cfg.Signer.Public().(ed25519.PublicKey) }

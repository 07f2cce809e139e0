package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/s3"
	"spillway.dev/spillway/datasync/stager"
	"spillway.dev/spillway/nodeagent/link"
	"spillway.dev/spillway/nodeagent/wipe"
)

// Stager is [Data] over the on-prem stager: it turns the objects of the
// cluster (tenant, provider, secrets) into the stager's own words.
type Stager struct {
	Client  client.Reader // uncached: it reads Secrets
	Stager  *stager.Stager
	Keys    stager.Keys
	Gate    *stager.Gate
	Records Records
	Now     func() time.Time
	// Tool and Version name this program in certificates.
	Tool, Version string
}

// refusedStaging says whether staging was refused for good, and why.
func refusedStaging(err error) (string, bool) {
	if refused, ok := errors.AsType[*stager.RefusedError](err); ok {
		return refused.Error(), true
	}
	return "", false
}

// Prepare implements [Data]. The gate is opened first: a key service that is
// down must not keep results from home.
func (s *Stager) Prepare(ctx context.Context, b *v1alpha1.Burst, until time.Time) error {
	if err := s.open(ctx, b, until); err != nil {
		return err
	}
	key, err := s.Keys.Create(ctx, string(b.UID))
	if err != nil {
		return fmt.Errorf("data key: %w", err)
	}
	key.Destroy()
	return nil
}

// open opens the gate for the burst's nodes. It asks no key service.
func (s *Stager) open(ctx context.Context, b *v1alpha1.Burst, until time.Time) error {
	tenant, err := s.tenant(ctx, b)
	if err != nil {
		return err
	}
	grants, err := grants(b, tenant)
	if err != nil {
		return err
	}
	s.Gate.Allow(string(b.UID), until, grants)
	return nil
}

// grants are the parts of the source store that a burst may reach: what its
// annotations name, within the tenant's sources, else the sources themselves.
func grants(b *v1alpha1.Burst, t *v1alpha1.BurstTenant) ([]stager.Grant, error) {
	var out []stager.Grant
	read, write := []string{"GET"}, []string{"GET", "PUT", "POST", "DELETE"}
	for _, urls := range []struct {
		refs    []string
		methods []string
	}{{b.Spec.Data.Inputs, read}, {b.Spec.Data.Outputs, write}} {
		for _, u := range urls.refs {
			ref, err := datasync.ParseRef(u)
			if err != nil {
				return nil, err
			}
			if ref, ok := within(ref, t, urls.methods[len(urls.methods)-1] == "DELETE"); ok {
				out = append(out, stager.Grant{Bucket: ref.Bucket, Prefix: ref.Prefix, Methods: urls.methods})
			}
		}
	}
	if len(out) > 0 {
		return out, nil
	}
	for _, src := range t.Spec.Sources {
		methods := read
		if src.Writable {
			methods = write
		}
		for _, prefix := range prefixes(src) {
			out = append(out, stager.Grant{Bucket: src.Bucket, Prefix: prefix, Methods: methods})
		}
	}
	return out, nil
}

// prefixes are what a source opens, in whole path elements: "train" opens
// train/x and not training/x, as the policy has it.
func prefixes(src v1alpha1.DataSource) []string {
	if len(src.Prefixes) == 0 {
		return []string{""}
	}
	whole := make([]string, len(src.Prefixes))
	for i, p := range src.Prefixes {
		if whole[i] = strings.TrimSuffix(p, "/"); whole[i] != "" {
			whole[i] += "/"
		}
	}
	return whole
}

// within returns the reference as far as the tenant's sources open it.
func within(ref datasync.Ref, t *v1alpha1.BurstTenant, write bool) (datasync.Ref, bool) {
	for _, src := range t.Spec.Sources {
		if src.Bucket != ref.Bucket || write && !src.Writable {
			continue
		}
		for _, p := range prefixes(src) {
			switch {
			case strings.HasPrefix(ref.Prefix, p):
				return ref, true
			case ref.Prefix+"/" == p:
				ref.Prefix = p
				return ref, true
			}
		}
	}
	return ref, false
}

// Stage implements [Data].
func (s *Stager) Stage(ctx context.Context, b *v1alpha1.Burst) (Staging, error) {
	job, err := s.job(ctx, b)
	if err != nil {
		return Staging{}, err
	}
	p, err := s.Stager.Stage(ctx, job)
	if err != nil {
		return Staging{}, fmt.Errorf("stage inputs: %w", err)
	}
	return Staging{
		Done: p.Done, Objects: int64(p.Objects), Bytes: p.BytesDone, Total: p.Bytes, ManifestSHA256: p.ManifestSHA256,
	}, nil
}

func (s *Stager) job(ctx context.Context, b *v1alpha1.Burst) (stager.StageJob, error) {
	tenant, err := s.tenant(ctx, b)
	if err != nil {
		return stager.StageJob{}, err
	}
	job, err := s.reading(ctx, tenant, b.Spec.Data.Inputs)
	if err != nil {
		return job, err
	}
	job.Burst, job.Tenant, job.Expires = string(b.UID), b.Spec.TenantID, b.Spec.Deadline.Time
	job.Freshness = freshness(b.Spec.Data.Freshness)
	job.Staging, err = s.staging(ctx, b)
	return job, err
}

// reading is a job as far as it reads inputs of a tenant.
func (s *Stager) reading(ctx context.Context, tenant *v1alpha1.BurstTenant, inputs []string) (stager.StageJob, error) {
	job := stager.StageJob{Tenant: tenant.Spec.ID}
	for _, u := range inputs {
		ref, err := datasync.ParseRef(u)
		if err != nil {
			return job, err
		}
		ref, _ = within(ref, tenant, false) // one outside is refused by the stager, by its name
		job.Inputs = append(job.Inputs, ref)
	}
	for _, src := range tenant.Spec.Sources {
		e, err := s.endpoint(ctx, src.Endpoint, src.Region, src.Secret)
		if err != nil {
			return job, fmt.Errorf("source %s of tenant %s: %w", src.Name, tenant.Name, err)
		}
		job.Sources = append(job.Sources, stager.Source{Endpoint: e, Bucket: src.Bucket, Prefixes: prefixes(src)})
	}
	return job, nil
}

// Need says how many bytes inputs of a tenant are. It only lists them, in the
// tenant's own sources; one outside is an error.
func (s *Stager) Need(ctx context.Context, tenant *v1alpha1.BurstTenant, inputs []string) (int64, error) {
	job, err := s.reading(ctx, tenant, inputs)
	if err != nil {
		return 0, err
	}
	_, bytes, err := s.Stager.Need(ctx, job)
	return bytes, err
}

// freshness is strict in all cases that are not one of the others.
func freshness(f *v1alpha1.Freshness) datasync.Freshness {
	switch {
	case f == nil:
		return datasync.Freshness{}
	case f.Mode == v1alpha1.FreshnessPinned:
		return datasync.Freshness{Mode: datasync.Pinned}
	case f.Mode == v1alpha1.FreshnessLease:
		return datasync.Freshness{Mode: datasync.Lease, For: time.Duration(f.Seconds) * time.Second}
	}
	return datasync.Freshness{}
}

// Release implements [Data].
func (s *Stager) Release(ctx context.Context, b *v1alpha1.Burst, r link.Report) (*link.SealedKey, *link.Stage, error) {
	sealed, err := s.sealed(ctx, b, r)
	if err != nil {
		return nil, nil, err
	}
	job, err := s.job(ctx, b)
	if err != nil {
		return nil, nil, err
	}
	if err := s.open(ctx, b, b.Spec.Deadline.Time); err != nil { // the gate forgets at a restart
		return nil, nil, err
	}
	p, err := s.Stager.Stage(ctx, job)
	if err != nil {
		return nil, nil, err
	}
	if !p.Done { // after a restart: it looks through what is staged already
		return sealed, nil, nil
	}
	return sealed, &link.Stage{ManifestURL: p.ManifestURL, ManifestSHA256: p.ManifestSHA256, ManifestKey: p.ManifestKey}, nil
}

// sealed is the data key for the agent process that made the report; nil when
// it holds the key already, or had its share of releases.
func (s *Stager) sealed(ctx context.Context, b *v1alpha1.Burst, r link.Report) (*link.SealedKey, error) {
	if r.KeyHeld {
		return nil, nil
	}
	if may, err := s.mayRelease(b, r); err != nil || !may {
		return nil, err
	}
	key, err := s.Keys.Get(ctx, string(b.UID))
	if err != nil {
		return nil, err
	}
	defer key.Destroy()
	sealed, err := link.SealKey(r.HPKE, string(b.UID), r.Node, key)
	return &sealed, err
}

// Collect implements [Data].
func (s *Stager) Collect(ctx context.Context, b *v1alpha1.Burst, uploads []link.Upload) (Returned, error) {
	tenant, err := s.tenant(ctx, b)
	if err != nil {
		return Returned{}, err
	}
	byStore := map[string][]datasync.Upload{}
	secrets := map[string]v1alpha1.DataSource{}
	for _, u := range uploads {
		src, ok := sourceOf(tenant, u.Bucket)
		if !ok {
			return Returned{}, fmt.Errorf("bucket %s was written to but is no source of tenant %s", u.Bucket, tenant.Name)
		}
		byStore[src.Name] = append(byStore[src.Name], datasync.Upload(u))
		secrets[src.Name] = src
	}
	var total Returned
	for _, name := range slices.Sorted(mapKeys(byStore)) {
		src := secrets[name]
		e, err := s.endpoint(ctx, src.Endpoint, src.Region, src.Secret)
		if err != nil {
			return total, err
		}
		c, err := s.Stager.Collect(ctx, stager.CollectJob{Burst: string(b.UID), Source: e, Uploads: byStore[name]})
		if short, ok := errors.AsType[*stager.IncompleteError](err); ok {
			total.Missing = append(total.Missing, short.Missing...)
			continue
		}
		if err != nil {
			return total, fmt.Errorf("verify results in source %s: %w", name, err)
		}
		total.Objects, total.Bytes = total.Objects+int64(c.Objects), total.Bytes+c.Bytes
	}
	slices.Sort(total.Missing)
	return total, nil
}

func mapKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func sourceOf(t *v1alpha1.BurstTenant, bucket string) (v1alpha1.DataSource, bool) {
	for _, src := range t.Spec.Sources {
		if src.Bucket == bucket {
			return src, true
		}
	}
	return v1alpha1.DataSource{}, false
}

// Erase implements [Data]. The evidence is the key custody's: what the key
// service said before and after the key's end.
func (s *Stager) Erase(ctx context.Context, b *v1alpha1.Burst) (Erased, error) {
	burst := string(b.UID)
	s.Gate.Revoke(burst)
	d, err := s.Keys.Destroy(ctx, burst)
	if err != nil {
		return Erased{}, err
	}
	e := Erased{
		Key: wipe.Key{
			ID: burst, Algorithm: "AES-256-GCM", Generator: "crypto/rand", GeneratedAt: d.Made,
			WrappedBy: wipe.KEK{KEKID: d.KEK.ID, Version: d.KEK.Version}, DestroyedAt: d.At, DestroyMethod: d.Method,
			Proven: d.Proven(), Doubts: d.Doubts, AuditRef: d.AuditRef,
		},
		Verification: wipe.Verification{
			Method: "unwrap a canary key before and after", Tool: s.Tool, Version: s.Version, At: d.Canary.At,
			CanarySHA256: d.Canary.SHA256, CanaryControl: d.Canary.Opened, LiveUnwrap: d.Canary.LiveOpened,
		},
	}
	if d.Canary.Refused {
		e.Verification.CanaryUnwrap = wipe.CanaryRefused
	}
	if d.KEK.Beyond != "" {
		e.NotCovered = []string{d.KEK.Beyond}
	}
	e.Staging, err = s.emptied(ctx, b)
	return e, err
}

func (s *Stager) emptied(ctx context.Context, b *v1alpha1.Burst) (wipe.Staging, error) {
	e, err := s.staging(ctx, b)
	if errors.Is(err, errNoStaging) {
		if !(record{Burst: b}).has(v1alpha1.StagingStarted) {
			return wipe.Staging{}, nil // nothing was staged
		}
		// Nobody can look any more. What is left is ciphertext without a key;
		// a store that was not listed empty is never certified.
		return wipe.Staging{Bucket: fmt.Sprintf("of burst %s at %s, out of reach", b.UID, b.Spec.Offer.Provider)}, nil
	}
	if err != nil {
		return wipe.Staging{}, err
	}
	w, err := s.Stager.Wipe(ctx, stager.WipeJob{Burst: string(b.UID), Staging: e})
	if err != nil {
		return wipe.Staging{}, fmt.Errorf("empty the staging store: %w", err)
	}
	return wipe.Staging{
		Bucket: w.Bucket, ObjectsDeleted: int64(w.ObjectsDeleted), VersionsDeleted: int64(w.VersionsDeleted),
		MarkersDeleted: int64(w.MarkersDeleted), UploadsAborted: int64(w.UploadsAborted), EmptyPasses: min(w.Passes, 2),
		FinalListSHA256: w.FinalListSHA256, DeletedBucketAt: w.BucketDeletedAt,
	}, nil
}

func (s *Stager) tenant(ctx context.Context, b *v1alpha1.Burst) (*v1alpha1.BurstTenant, error) {
	t := &v1alpha1.BurstTenant{}
	if err := s.Client.Get(ctx, types.NamespacedName{Name: b.Spec.Tenant}, t); err != nil {
		return nil, fmt.Errorf("read tenant %s: %w", b.Spec.Tenant, err)
	}
	return t, nil
}

var errNoStaging = errors.New("it has no staging store")

// staging is the provider's staging store.
func (s *Stager) staging(ctx context.Context, b *v1alpha1.Burst) (s3.Endpoint, error) {
	p := &v1alpha1.BurstProvider{}
	err := s.Client.Get(ctx, types.NamespacedName{Name: b.Spec.Offer.Provider}, p)
	if apierrors.IsNotFound(err) {
		return s3.Endpoint{}, fmt.Errorf("provider %s was deleted: %w", b.Spec.Offer.Provider, errNoStaging)
	}
	if err != nil {
		return s3.Endpoint{}, fmt.Errorf("read provider %s: %w", b.Spec.Offer.Provider, err)
	}
	if p.Spec.Staging == nil {
		return s3.Endpoint{}, fmt.Errorf("provider %s: %w: set spec.staging", p.Name, errNoStaging)
	}
	return s.endpoint(ctx, p.Spec.Staging.Endpoint, p.Spec.Staging.Region, p.Spec.Staging.Secret)
}

func (s *Stager) endpoint(ctx context.Context, url, region, secret string) (s3.Endpoint, error) {
	keys := &corev1.Secret{}
	if err := s.Client.Get(ctx, types.NamespacedName{Namespace: v1alpha1.SystemNamespace, Name: secret}, keys); err != nil {
		return s3.Endpoint{}, fmt.Errorf("read Secret %s/%s with the store's keys: %w", v1alpha1.SystemNamespace, secret, err)
	}
	e := s3.Endpoint{URL: url, Region: region, AccessKey: string(keys.Data["accessKey"]), SecretKey: string(keys.Data["secretKey"])}
	if e.AccessKey == "" || e.SecretKey == "" {
		return e, fmt.Errorf("the Secret %s/%s lacks accessKey or secretKey", v1alpha1.SystemNamespace, secret)
	}
	return e, nil
}

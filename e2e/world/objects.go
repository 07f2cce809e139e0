package world

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
)

// evidence is a statement that holds for the length of a test or demo.
func evidence() v1alpha1.Evidence {
	return v1alpha1.Evidence{
		Link: "https://example.com/evidence", Reviewed: metav1.NewTime(time.Now().Add(-24 * time.Hour)), Expires: metav1.NewTime(time.Now().AddDate(1, 0, 0)),
	}
}

// Connect writes the BurstProvider and the credential of every cloud, and the
// key of the staging store.
func (w *World) Connect(ctx context.Context) error {
	staging := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: "staging-keys"},
		StringData: map[string]string{"accessKey": cloudKey, "secretKey": w.SecretOf(cloudKey)},
	}
	if err := w.Client.Create(ctx, staging); err != nil {
		return fmt.Errorf("key of the staging store: %w", err)
	}
	for _, c := range w.Config.Clouds {
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: c.Name + "-credentials"},
			StringData: map[string]string{"token": c.Secret},
		}
		if err := w.Client.Create(ctx, secret); err != nil {
			return fmt.Errorf("credential of %s: %w", c.Name, err)
		}
		if err := w.Client.Create(ctx, w.provider(c)); err != nil {
			return fmt.Errorf("provider %s: %w", c.Name, err)
		}
	}
	return nil
}

func (w *World) provider(c Cloud) *v1alpha1.BurstProvider {
	proof := evidence()
	return &v1alpha1.BurstProvider{
		ObjectMeta: metav1.ObjectMeta{Name: c.Name},
		Spec: v1alpha1.BurstProviderSpec{
			Driver: "fake", Endpoint: w.CloudsURL + "/" + c.Name, Region: c.Region, Country: c.Country,
			CredentialsSecret: c.Name + "-credentials",
			Legal: v1alpha1.LegalFacts{
				Seat: c.Country, Owner: c.Owner, OwnerCountry: c.OwnerCountry, SubjectTo: c.SubjectTo, Evidence: &proof,
			},
			Certifications:      []v1alpha1.Certification{{Name: "C5", Evidence: proof}},
			ProcessingAgreement: &proof,
			Join: v1alpha1.JoinSettings{
				BootTime:     metav1.Duration{Duration: 8 * time.Second},
				JoinDeadline: metav1.Duration{Duration: time.Minute}, ReadyDeadline: metav1.Duration{Duration: 90 * time.Second},
			},
			Staging:  &v1alpha1.StagingStore{Endpoint: w.Staging.URL(), Region: "us-east-1", Secret: "staging-keys"},
			Transfer: &v1alpha1.Transfer{MiBPerSecond: 100, PricePerGiB: "0.02 EUR"},
		},
	}
}

// Tenant is a BurstTenant of one namespace with a monthly hard budget, whose
// confidential data may go to EU countries without foreign reach.
func (w *World) Tenant(name, id, mode, budget string, sources ...v1alpha1.DataSource) *v1alpha1.BurstTenant {
	run := metav1.Duration{Duration: time.Hour}
	return &v1alpha1.BurstTenant{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.BurstTenantSpec{
			ID: id, Namespaces: []string{name}, DataClass: "confidential", Sources: sources,
			Burst: v1alpha1.BurstRules{
				Mode: mode, BurstAfter: metav1.Duration{Duration: 3 * time.Second}, MaxRunTime: &run, Reserve: "safe",
				Budgets: []v1alpha1.TenantBudget{{Name: "month", Limit: v1alpha1.Money(budget), Window: "month", TimeZone: "Europe/Berlin", Hard: true}},
				DataRules: []v1alpha1.DataRule{{
					Class: "confidential", Countries: []string{"DE", "FI", "FR", "IE", "NL"}, ForbiddenLaws: []string{"us-cloud-act"},
				}},
			},
		},
	}
}

// Source is a bucket of the home store as a data source.
func (w *World) Source(bucket string, writable bool) v1alpha1.DataSource {
	return v1alpha1.DataSource{
		Name: bucket, Endpoint: w.Home.URL(), Region: "us-east-1", Bucket: bucket, Secret: "store-keys", Writable: writable,
	}
}

// Move brings a tenant in: its namespace, the keys of the store for its jobs
// and for the stager, and the tenant itself.
func (w *World) Move(ctx context.Context, t *v1alpha1.BurstTenant) error {
	for _, ns := range t.Spec.Namespaces {
		if err := w.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}); err != nil {
			return fmt.Errorf("namespace %s: %w", ns, err)
		}
		if err := w.StoreSecret(ctx, ns, "store-keys", TenantKey); err != nil {
			return err
		}
	}
	if _, err := w.Kube.CoreV1().Secrets(v1alpha1.SystemNamespace).Get(ctx, "store-keys", metav1.GetOptions{}); err != nil {
		if err := w.StoreSecret(ctx, v1alpha1.SystemNamespace, "store-keys", StagerKey); err != nil {
			return err
		}
	}
	if err := w.Client.Create(ctx, t); err != nil {
		return fmt.Errorf("tenant %s: %w", t.Name, err)
	}
	return nil
}

package e2e

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
)

// objectsStory is the first line against bad objects: the API server refuses
// them with a message that names the field.
func objectsStory(t *testing.T, admin dynamic.Interface) {
	tenants := admin.Resource(v1alpha1.GroupVersion().WithResource("bursttenants"))
	tests := map[string]struct {
		spoil func(*v1alpha1.BurstTenant)
		want  string
	}{
		"an id with a person's name":       {func(b *v1alpha1.BurstTenant) { b.Spec.ID = "Jane Doe" }, "spec.id"},
		"no namespace":                     {func(b *v1alpha1.BurstTenant) { b.Spec.Namespaces = nil }, "spec.namespaces"},
		"an unknown data class":            {func(b *v1alpha1.BurstTenant) { b.Spec.DataClass = "top-secret" }, "spec.dataClass"},
		"an unknown mode":                  {func(b *v1alpha1.BurstTenant) { b.Spec.Burst.Mode = "Sometimes" }, "spec.burst.mode"},
		"money without a currency":         {func(b *v1alpha1.BurstTenant) { b.Spec.Burst.Budgets[0].Limit = "12.00" }, "limit"},
		"money as a float":                 {func(b *v1alpha1.BurstTenant) { b.Spec.Burst.Budgets[0].Limit = "1e3 EUR" }, "limit"},
		"a fixed window without its dates": {func(b *v1alpha1.BurstTenant) { b.Spec.Burst.Budgets[0].Window = "fixed" }, "start and end"},
		"more money than is counted":       {func(b *v1alpha1.BurstTenant) { b.Spec.Burst.Budgets[0].Limit = "9999999999 EUR" }, "limit"},
		"a fixed window that ends first":   {func(b *v1alpha1.BurstTenant) { fixed(&b.Spec.Burst.Budgets[0], time.Hour, 0) }, "the start first"},
		"the zone of whichever host":       {func(b *v1alpha1.BurstTenant) { b.Spec.Burst.Budgets[0].TimeZone = "Local" }, "timeZone"},
		"a source without a scheme":        {func(b *v1alpha1.BurstTenant) { b.Spec.Sources[0].Endpoint = "s3.onprem.test" }, "endpoint"},
	}
	for name, tt := range tests {
		t.Run("a tenant with "+name, func(t *testing.T) {
			tenant := goodTenant()
			tt.spoil(tenant)
			_, err := tenants.Create(t.Context(), object(t, tenant, "BurstTenant"), metav1.CreateOptions{})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("the API server answered %v, want a refusal that names %q", err, tt.want)
			}
		})
	}
	t.Run("a good tenant is taken, and its id never changes", func(t *testing.T) {
		made, err := tenants.Create(t.Context(), object(t, goodTenant(), "BurstTenant"), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := unstructured.SetNestedField(made.Object, "t-2", "spec", "id"); err != nil {
			t.Fatal(err)
		}
		if _, err := tenants.Update(t.Context(), made, metav1.UpdateOptions{}); err == nil || !strings.Contains(err.Error(), "id is final") {
			t.Errorf("changing the id: %v, want a refusal that says why", err)
		}
	})
	t.Run("what a budget means never changes, its limit may", func(t *testing.T) { budgetStory(t, tenants) })
	t.Run("a price that was written never changes", func(t *testing.T) { tariffStory(t, admin) })
	t.Run("a provider at EC2 says where its machines are attached", func(t *testing.T) { providerStory(t, admin) })
}

func providerStory(t *testing.T, admin dynamic.Interface) {
	provider := &v1alpha1.BurstProvider{
		ObjectMeta: metav1.ObjectMeta{Name: "frankfurt"},
		Spec: v1alpha1.BurstProviderSpec{
			Driver: "ec2", Region: "eu-central-1", Country: "DE", CredentialsSecret: "frankfurt-credentials",
			Legal:    v1alpha1.LegalFacts{Seat: "LU", Owner: "Amazon.com, Inc.", OwnerCountry: "US", SubjectTo: []string{"us-cloud-act"}},
			Machines: v1alpha1.MachineSettings{Image: "ami-1", Network: "net"},
		},
	}
	made := admin.Resource(v1alpha1.GroupVersion().WithResource("burstproviders"))
	_, err := made.Create(t.Context(), object(t, provider, "BurstProvider"), metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "machines.subnets") {
		t.Errorf("without subnets: %v, want a refusal that names them", err)
	}
	provider.Spec.Machines.Subnets = []string{"subnet-1"}
	if _, err := made.Create(t.Context(), object(t, provider, "BurstProvider"), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
}

func fixed(b *v1alpha1.TenantBudget, start, end time.Duration) {
	from, until := metav1.NewTime(time.Unix(1_800_000_000, 0).Add(start)), metav1.NewTime(time.Unix(1_800_000_000, 0).Add(end))
	b.Window, b.Start, b.End = "fixed", &from, &until
}

func budgetStory(t *testing.T, tenants dynamic.ResourceInterface) {
	tenant := goodTenant()
	tenant.Name = "budgets"
	made, err := tenants.Create(t.Context(), object(t, tenant, "BurstTenant"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	change := func(edit func(*v1alpha1.TenantBudget)) error {
		next := tenant.DeepCopy()
		next.ResourceVersion = made.GetResourceVersion()
		edit(&next.Spec.Burst.Budgets[0])
		after, err := tenants.Update(t.Context(), object(t, next, "BurstTenant"), metav1.UpdateOptions{})
		if err == nil {
			made = after
		}
		return err
	}
	for name, edit := range map[string]func(*v1alpha1.TenantBudget){
		"window":   func(b *v1alpha1.TenantBudget) { b.Window = "day" },
		"timeZone": func(b *v1alpha1.TenantBudget) { b.TimeZone = "UTC" },
		"currency": func(b *v1alpha1.TenantBudget) { b.Limit = "12.00 CHF" },
	} {
		if err := change(edit); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "use a new name") {
			t.Errorf("changing the %s: %v, want a refusal that says what to do", name, err)
		}
	}
	if err := change(func(b *v1alpha1.TenantBudget) { b.Limit, b.Hard = "3 EUR", false }); err != nil {
		t.Errorf("lowering the limit: %v", err)
	}
}

func tariffStory(t *testing.T, admin dynamic.Interface) {
	tariffs := admin.Resource(schema.GroupVersionResource{Group: v1alpha1.Group, Version: "v1alpha1", Resource: "bursttariffs"})
	price := func(eur string, from time.Time) v1alpha1.TariffPrice {
		return v1alpha1.TariffPrice{
			GPUModel: "H100", OnPremPerHour: "2.10 EUR", BurstPerHour: v1alpha1.Money(eur), ValidFrom: metav1.NewTime(from),
		}
	}
	january := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	tariff := &v1alpha1.BurstTariff{
		ObjectMeta: metav1.ObjectMeta{Name: "list"},
		Spec:       v1alpha1.BurstTariffSpec{Prices: []v1alpha1.TariffPrice{price("3.00 EUR", january)}},
	}
	made, err := tariffs.Create(t.Context(), object(t, tariff, "BurstTariff"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	change := func(prices ...v1alpha1.TariffPrice) error {
		tariff.Spec.Prices, tariff.ResourceVersion = prices, made.GetResourceVersion()
		after, err := tariffs.Update(t.Context(), object(t, tariff, "BurstTariff"), metav1.UpdateOptions{})
		if err == nil {
			made = after
		}
		return err
	}
	if err := change(price("2.00 EUR", january)); err == nil || !strings.Contains(err.Error(), "never change") {
		t.Errorf("changing a price: %v, want a refusal that says what to do", err)
	}
	if err := change(price("3.00 EUR", january), price("2.00 EUR", january.AddDate(0, 6, 0))); err != nil {
		t.Errorf("superseding a price: %v", err)
	}
}

func goodTenant() *v1alpha1.BurstTenant {
	return &v1alpha1.BurstTenant{
		ObjectMeta: metav1.ObjectMeta{Name: "objects"},
		Spec: v1alpha1.BurstTenantSpec{
			ID: "t-1", Namespaces: []string{"objects"}, DataClass: "internal",
			Burst: v1alpha1.BurstRules{Budgets: []v1alpha1.TenantBudget{{Name: "month", Limit: "12.00 EUR", Hard: true}}},
			Sources: []v1alpha1.DataSource{{
				Name: "data", Endpoint: "http://s3.onprem.test:9000", Bucket: "data", Secret: "keys",
			}},
		},
	}
}

// object is a typed object as the dynamic client sends it.
func object(t *testing.T, typed any, kind string) *unstructured.Unstructured {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetAPIVersion(v1alpha1.GroupVersion().String())
	u.SetKind(kind)
	return u
}

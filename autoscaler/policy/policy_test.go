package policy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/policy"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/quota/money"
)

func day(n int) metav1.Time { return metav1.NewTime(time.Date(2026, 11, n, 12, 0, 0, 0, time.UTC)) }

func evidence(expires metav1.Time) v1alpha1.Evidence {
	return v1alpha1.Evidence{Link: "https://example.org/paper", Reviewed: day(1), Expires: expires}
}

// trip is confidential data of a tenant that allows Germany and Finland, no
// CLOUD Act and only providers with C5, on its way to a German provider that
// has all of it, from the 2nd to the 3rd of November.
func trip(changes ...func(*policy.Trip)) policy.Trip {
	good := evidence(day(30))
	t := policy.Trip{
		Class: policy.Confidential, Now: day(2).Time, Until: day(3).Time,
		Tenant: v1alpha1.BurstTenant{
			ObjectMeta: metav1.ObjectMeta{Name: "vision"},
			Spec: v1alpha1.BurstTenantSpec{Burst: v1alpha1.BurstRules{DataRules: []v1alpha1.DataRule{
				{Class: "confidential", Countries: []string{"FI", "DE"}, ForbiddenLaws: []string{"us-cloud-act"}, RequiredCertifications: []string{"C5"}},
			}}},
		},
		Offer: providers.Offer{Provider: "ovh", Country: "DE", Price: money.Rate{NanoPerHour: 1, Currency: "EUR"}},
		Provider: &v1alpha1.BurstProvider{
			ObjectMeta: metav1.ObjectMeta{Name: "ovh"},
			Spec: v1alpha1.BurstProviderSpec{
				Country: "DE", ProcessingAgreement: &good,
				Legal:          v1alpha1.LegalFacts{Seat: "FR", Owner: "OVH Groupe", OwnerCountry: "FR", Evidence: &good},
				Certifications: []v1alpha1.Certification{{Name: "C5", Evidence: good}},
			},
		},
	}
	for _, change := range changes {
		change(&t)
	}
	return t
}

func spec(change func(*v1alpha1.BurstProviderSpec)) func(*policy.Trip) {
	return func(t *policy.Trip) { change(&t.Provider.Spec) }
}

func rule(change func(*v1alpha1.DataRule)) func(*policy.Trip) {
	return func(t *policy.Trip) { change(&t.Tenant.Spec.Burst.DataRules[0]) }
}

func condition(name string) func(*policy.Trip) {
	return func(t *policy.Trip) {
		t.Provider.Status.Conditions = []metav1.Condition{{Type: name, Status: metav1.ConditionFalse, Reason: "Broken", Message: "as tested"}}
	}
}

// say writes refusals as "CODE: message", one a line.
func say(all []policy.Refusal) string {
	var lines []string
	for _, r := range all {
		lines = append(lines, r.Code+": "+r.Message)
	}
	return strings.Join(lines, "\n")
}

func TestGoing(t *testing.T) {
	yesterday, tonight := evidence(day(1)), evidence(metav1.NewTime(day(2).Add(6*time.Hour)))
	tests := map[string]struct {
		trip policy.Trip
		want string
	}{
		"all papers in order": {trip: trip()},
		"nobody has described the provider": {
			trip: trip(func(t *policy.Trip) { t.Provider = nil }),
			want: `PROVIDER_UNKNOWN: there is no BurstProvider "ovh"`,
		},
		"the provider is being removed": {
			trip: trip(func(t *policy.Trip) { when := day(1); t.Provider.DeletionTimestamp = &when }),
			want: `PROVIDER_CORDONED: BurstProvider "ovh" is being removed`,
		},
		"the tenant lists other providers": {
			trip: trip(rule(func(r *v1alpha1.DataRule) { r.Providers = []string{"open", "cleura"} })),
			want: "PROVIDER_NOT_ALLOWED: tenant vision allows confidential data at cleura, open only",
		},
		"the tenant lists this provider": {trip: trip(rule(func(r *v1alpha1.DataRule) { r.Providers = []string{"ovh"} }))},
		"a class that nobody knows": {
			trip: trip(func(t *policy.Trip) { t.Class = "top" }),
			want: `DATA_CLASS_UNKNOWN: data class "top" is not known`,
		},
		"no class at all": {
			trip: trip(func(t *policy.Trip) { t.Class = "" }),
			want: `DATA_CLASS_UNKNOWN: data class "" is not known`,
		},
		"a class without a rule": {
			trip: trip(func(t *policy.Trip) { t.Class = policy.Secret }),
			want: "DATA_CLASS_FORBIDS_CLOUD: tenant vision has no rule for secret data, so it never leaves the house",
		},
		"another country": {
			trip: trip(func(t *policy.Trip) { t.Offer.Country, t.Provider.Spec.Country = "FR", "FR" }),
			want: "REGION_EXCLUDED: the machine stands in FR; tenant vision allows confidential data in DE, FI",
		},
		"an empty list of countries allows none": {
			trip: trip(rule(func(r *v1alpha1.DataRule) { r.Countries = nil })),
			want: "REGION_EXCLUDED: the machine stands in DE; tenant vision allows confidential data in no place at all",
		},
		"a country that nobody states": {
			trip: trip(func(t *policy.Trip) { t.Offer.Country, t.Provider.Spec.Country = "", "" }),
			want: "JURISDICTION_FACTS_MISSING: nobody says in which country the machine stands",
		},
		"the cloud and the operator disagree on the country": {
			trip: trip(func(t *policy.Trip) { t.Offer.Country = "FI" }),
			want: "JURISDICTION_FACTS_MISSING: the cloud says that the machine stands in FI, the BurstProvider says DE",
		},
		"a forbidden law": {
			trip: trip(spec(func(p *v1alpha1.BurstProviderSpec) { p.Legal.SubjectTo = []string{"gdpr", "us-cloud-act"} })),
			want: "JURISDICTION_LAW: ovh (owner OVH Groupe, FR) is subject to us-cloud-act, which tenant vision forbids for confidential data",
		},
		"an American owner whose facts forget the law": {
			trip: trip(spec(func(p *v1alpha1.BurstProviderSpec) { p.Legal.OwnerCountry = "US" })),
			want: "JURISDICTION_FACTS_MISSING: ovh is seated in FR, its owner in US, and still its facts do not name us-cloud-act",
		},
		"no owner": {
			trip: trip(spec(func(p *v1alpha1.BurstProviderSpec) { p.Legal.Owner = "" })),
			want: "JURISDICTION_FACTS_MISSING: ovh does not state its legal seat, owner and owner's country",
		},
		"legal facts without evidence": {
			trip: trip(spec(func(p *v1alpha1.BurstProviderSpec) { p.Legal.Evidence = nil })),
			want: "JURISDICTION_FACTS_MISSING: the legal facts of ovh have no evidence",
		},
		"legal facts whose evidence has expired": {
			trip: trip(spec(func(p *v1alpha1.BurstProviderSpec) { p.Legal.Evidence = &yesterday })),
			want: "JURISDICTION_FACTS_MISSING: the evidence for the legal facts of ovh expired on 2026-11-01",
		},
		"a tenant that forbids no law still has to know which ones reach its data": {
			trip: trip(rule(func(r *v1alpha1.DataRule) { r.ForbiddenLaws = nil }), spec(func(p *v1alpha1.BurstProviderSpec) { p.Legal.Evidence = &yesterday })),
			want: "JURISDICTION_FACTS_MISSING: the evidence for the legal facts of ovh expired on 2026-11-01",
		},
		"public data of a tenant that forbids no law needs no legal facts": {
			trip: trip(func(t *policy.Trip) { t.Class = policy.Public },
				rule(func(r *v1alpha1.DataRule) { r.Class, r.ForbiddenLaws = "public", nil }), spec(func(p *v1alpha1.BurstProviderSpec) { p.Legal = v1alpha1.LegalFacts{} })),
		},
		"a certificate that is missing": {
			trip: trip(spec(func(p *v1alpha1.BurstProviderSpec) { p.Certifications = nil })),
			want: "PROVIDER_CERT_MISSING: ovh has no C5, which tenant vision requires for confidential data",
		},
		"a certificate that has expired": {
			trip: trip(spec(func(p *v1alpha1.BurstProviderSpec) { p.Certifications[0].Evidence = yesterday })),
			want: "PROVIDER_CERT_EXPIRED: the C5 of ovh expired on 2026-11-01",
		},
		"a certificate that ends before the burst": {
			trip: trip(spec(func(p *v1alpha1.BurstProviderSpec) { p.Certifications[0].Evidence = tonight })),
			want: "PROVIDER_CERT_EXPIRED: the C5 of ovh expires on 2026-11-02, before the burst would end",
		},
		"a certificate without a date": {
			trip: trip(spec(func(p *v1alpha1.BurstProviderSpec) { p.Certifications[0].Expires = metav1.Time{} })),
			want: "PROVIDER_CERT_EXPIRED: the C5 of ovh has no expiry date",
		},
		"a certificate that nobody has reviewed": {
			trip: trip(spec(func(p *v1alpha1.BurstProviderSpec) { p.Certifications[0].Reviewed = day(20) })),
			want: "PROVIDER_CERT_EXPIRED: the C5 of ovh was not reviewed yet",
		},
		"no processing agreement": {
			trip: trip(spec(func(p *v1alpha1.BurstProviderSpec) { p.ProcessingAgreement = nil })),
			want: "PROVIDER_AGREEMENT_MISSING: there is no processing agreement with ovh, which confidential data needs",
		},
		"a processing agreement that ends before the burst": {
			trip: trip(spec(func(p *v1alpha1.BurstProviderSpec) { p.ProcessingAgreement = &tonight })),
			want: "PROVIDER_AGREEMENT_EXPIRED: the processing agreement with ovh expires on 2026-11-02, before the burst would end",
		},
		"public data needs no processing agreement": {
			trip: trip(func(t *policy.Trip) { t.Class, t.Provider.Spec.ProcessingAgreement = policy.Public, nil }, rule(func(r *v1alpha1.DataRule) { r.Class = "public" })),
		},
		"out of service": {
			trip: trip(func(t *policy.Trip) {
				until := day(3)
				t.Provider.Status.UnavailableUntil, t.Provider.Status.UnavailableReason = &until, "API answers 503"
			}),
			want: "PROVIDER_CIRCUIT_OPEN: ovh is unavailable until 2026-11-03 12:00Z: API answers 503",
		},
		"back in service": {trip: trip(func(t *policy.Trip) { until := day(2); t.Provider.Status.UnavailableUntil = &until })},
		"not healthy": {
			trip: trip(condition("Healthy")),
			want: "PROVIDER_CIRCUIT_OPEN: ovh is not healthy: as tested",
		},
		"machines that can't join": {
			trip: trip(condition(policy.HostsNodes)),
			want: "PROVIDER_CANNOT_HOST_NODES: machines of ovh can't join as nodes: as tested",
		},
		"price zero": { // cases: D-77 SkyPilot OpenStack catalogue
			trip: trip(func(t *policy.Trip) { t.Offer.Price = money.Rate{} }),
			want: "PRICE_UNKNOWN: the price is not known; zero is never taken for free",
		},
		"all reasons are given at once": {
			trip: trip(func(t *policy.Trip) { t.Offer.Price = money.Rate{} },
				spec(func(p *v1alpha1.BurstProviderSpec) {
					p.Certifications, p.ProcessingAgreement, p.Legal.SubjectTo = nil, nil, []string{"us-cloud-act"}
				})),
			want: "JURISDICTION_LAW: ovh (owner OVH Groupe, FR) is subject to us-cloud-act, which tenant vision forbids for confidential data\n" +
				"PROVIDER_CERT_MISSING: ovh has no C5, which tenant vision requires for confidential data\n" +
				"PROVIDER_AGREEMENT_MISSING: there is no processing agreement with ovh, which confidential data needs\n" +
				"PRICE_UNKNOWN: the price is not known; zero is never taken for free",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, say(policy.Going().Evaluate(tt.trip))); diff != "" {
				t.Errorf("Evaluate() (-want +got):\n%s", diff)
			}
		})
	}
}

// Whatever the price, as long as there is one, the rules answer the same.
func TestPriceDecidesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		facts := trip(func(f *policy.Trip) {
			f.Class = rapid.SampledFrom([]policy.Class{policy.Public, policy.Confidential, policy.Secret}).Draw(t, "class")
		})
		facts.Offer.Country = rapid.SampledFrom([]string{"DE", "US", ""}).Draw(t, "country")
		prices := rapid.OneOf(rapid.Int64Range(1, 1e6), rapid.Int64Range(1e6, 1e11), rapid.Int64Range(1e11, 1e15))
		facts.Offer.Price.NanoPerHour = prices.Draw(t, "one price")
		before := policy.Going().Evaluate(facts)
		facts.Offer.Price.NanoPerHour = prices.Draw(t, "another price")
		if diff := cmp.Diff(before, policy.Going().Evaluate(facts)); diff != "" {
			t.Errorf("the price changed the answer:\n%s", diff)
		}
	})
}

// work of the tenant vision, one plain pod; confidential, with two sources.
func work(changes ...func(*policy.Work)) policy.Work {
	w := policy.Work{
		Tenant: v1alpha1.BurstTenant{
			ObjectMeta: metav1.ObjectMeta{Name: "vision"},
			Spec: v1alpha1.BurstTenantSpec{DataClass: "internal", Sources: []v1alpha1.DataSource{
				{Name: "train", Bucket: "data", Prefixes: []string{"train"}, DataClass: "confidential"},
				{Name: "out", Bucket: "results", Writable: true},
			}},
		},
		Pods: []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}}},
	}
	for _, change := range changes {
		change(&w)
	}
	return w
}

func podSpec(change func(*corev1.PodSpec)) func(*policy.Work) {
	return func(w *policy.Work) { change(&w.Pods[0].Spec) }
}

func mounting(source corev1.VolumeSource) func(*policy.Work) {
	return podSpec(func(s *corev1.PodSpec) { s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}} })
}

func claim(w *policy.Work, pvc *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
	mounting(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}})(w)
	w.Claims = map[string]*corev1.PersistentVolumeClaim{"ns/c": pvc}
	w.Volumes = map[string]*corev1.PersistentVolume{"pv": pv}
}

func TestLeaving(t *testing.T) {
	yes, fast := true, "fast"
	bound := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv", StorageClassName: &fast}}
	tests := map[string]struct {
		work policy.Work
		want string
	}{
		"a plain pod": {work: work()},
		"inputs and outputs in the tenant's sources": {
			work: work(func(w *policy.Work) {
				w.Inputs, w.Outputs = []string{"s3://data/train/", "s3://data/train", "s3://results/in/"}, []string{"s3://results/run-1/"}
			}),
		},
		"an input in a strange bucket": {
			work: work(func(w *policy.Work) { w.Inputs = []string{"s3://other/train/"} }),
			want: "DATASET_NOT_STAGEABLE: input s3://other/train/ is in none of the sources of tenant vision",
		},
		"a prefix counts in whole path elements": {
			work: work(func(w *policy.Work) { w.Inputs = []string{"s3://data/training/"} }),
			want: "DATASET_NOT_STAGEABLE: input s3://data/training/ is in none of the sources of tenant vision",
		},
		"a way out of the prefix": {
			work: work(func(w *policy.Work) { w.Inputs = []string{"s3://data/train/../secret/"} }),
			want: "DATASET_NOT_STAGEABLE: input s3://data/train/../secret/ is in none of the sources of tenant vision",
		},
		"not an S3 URL": {
			work: work(func(w *policy.Work) { w.Inputs = []string{"https://data/train/"} }),
			want: "DATASET_NOT_STAGEABLE: input https://data/train/ is in none of the sources of tenant vision",
		},
		"an output where nothing may be written": {
			work: work(func(w *policy.Work) { w.Outputs = []string{"s3://data/train/out/"} }),
			want: "RESULT_PREFIX_MISSING: output s3://data/train/out/ is in none of the writable sources of tenant vision",
		},
		"a source that is spoken to over TLS": {
			work: work(func(w *policy.Work) {
				w.Tenant.Spec.Sources[0].Endpoint, w.Inputs = "https://s3.example", []string{"s3://data/train/a/"}
			}),
			want: "TLS_NOT_CACHEABLE: source train of tenant vision is spoken to over TLS (https://s3.example), and a burst node has no certificate of that name",
		},
		"a source over TLS that the work may reach, since it names none": {
			work: work(func(w *policy.Work) { w.Tenant.Spec.Sources[1].Endpoint = "https://s3.example" }),
			want: "TLS_NOT_CACHEABLE: source out of tenant vision is spoken to over TLS (https://s3.example), and a burst node has no certificate of that name",
		},
		"a source over TLS that the work leaves alone": {
			work: work(func(w *policy.Work) {
				w.Tenant.Spec.Sources[0].Endpoint, w.Tenant.Spec.Sources[1].Endpoint = "http://s3.example", "https://s3.example"
				w.Inputs = []string{"s3://data/train/a/"}
			}),
		},
		"an annotation that is no class": {
			work: work(func(w *policy.Work) { w.DataClass = "harmless" }),
			want: `DATA_CLASS_UNKNOWN: the data class is "internal" by the tenant and "harmless" by the work, and not all of these are classes`,
		},
		"a tenant without a class": {
			work: work(func(w *policy.Work) { w.Tenant.Spec.DataClass = "" }),
			want: `DATA_CLASS_UNKNOWN: the data class is "" by the tenant and "" by the work, and not all of these are classes`,
		},
		"a priority class that may not cost money": { // cases: F5 kubernetes-sigs/karpenter#1396
			work: work(func(w *policy.Work) {
				w.Tenant.Spec.Burst.PriorityClasses, w.PriorityClass = []string{"urgent", "paper"}, "idle"
			}),
			want: `PRIORITY_CLASS_NOT_ENABLED: priority class "idle" of tenant vision may not cost money (these may: paper, urgent)`,
		},
		"a claim that nobody knows": {
			work: work(mounting(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}})),
			want: "PVC_CLASS_NOT_BURSTABLE: claim c is not known",
		},
		"a claim that is not bound yet": { // cases: H10 kubernetes/autoscaler#3131
			work: work(func(w *policy.Work) { claim(w, &corev1.PersistentVolumeClaim{}, nil) }),
			want: "PVC_UNBOUND_WFFC: claim c is not bound: binding it on a burst node would make new storage in the cloud",
		},
		"a claim on a network volume": {
			work: work(func(w *policy.Work) { claim(w, bound, &corev1.PersistentVolume{}) }),
			want: "PVC_CLASS_NOT_BURSTABLE: claim c is bound to on-prem volume pv of storage class fast",
		},
		"a claim on a local volume": { // cases: F36 kubernetes/autoscaler#4339
			work: work(func(w *policy.Work) {
				claim(w, bound, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{NodeAffinity: &corev1.VolumeNodeAffinity{}}})
			}),
			want: "LOCAL_PV: claim c is bound to volume pv, which is reachable from certain on-prem nodes or zones only",
		},
		"a host path": {
			work: work(mounting(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}})),
			want: `HOSTPATH_FORBIDDEN: volume "v" mounts the path /data of its node`,
		},
		"an NFS volume": {
			work: work(mounting(corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nas"}})),
			want: `VOLUME_NOT_BURSTABLE: volume "v" is of a kind that a burst node can't mount`,
		},
		"an emptyDir":             {work: work(mounting(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))},
		"a service account token": {work: work(mounting(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}))},
		"the network of its node": {
			work: work(podSpec(func(s *corev1.PodSpec) { s.HostNetwork = true })),
			want: "HOST_NETWORK: the pod uses the network, processes or IPC of its node",
		},
		"a privileged init container": {
			work: work(podSpec(func(s *corev1.PodSpec) {
				s.InitContainers = []corev1.Container{{Name: "setup", SecurityContext: &corev1.SecurityContext{Privileged: &yes}}}
			})),
			want: `PRIVILEGED_FORBIDDEN: container "setup" is privileged: it could read the keys of its node`,
		},
		"a host port": {
			work: work(podSpec(func(s *corev1.PodSpec) { s.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}} })),
			want: `HOST_PORT: container "main" wants port 80 of its node`,
		},
		"a toleration for everything": {
			work: work(podSpec(func(s *corev1.PodSpec) { s.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} })),
			want: `WILDCARD_TOLERATION: the toleration with key "" and operator Exists opens the nodes of every burst`,
		},
		"a toleration for every burst": {
			work: work(podSpec(func(s *corev1.PodSpec) {
				s.Tolerations = []corev1.Toleration{{Key: v1alpha1.BurstTaint, Operator: corev1.TolerationOpExists}}
			})),
			want: `WILDCARD_TOLERATION: the toleration with key "spillway.dev/burst" and operator Exists opens the nodes of every burst`,
		},
		"a toleration for another key": {
			work: work(podSpec(func(s *corev1.PodSpec) {
				s.Tolerations = []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}}
			})),
		},
		"GPUs by resource claim": {
			work: work(podSpec(func(s *corev1.PodSpec) { s.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}} })),
			want: `DRA_CLAIM_UNSUPPORTED: the pod asks for devices by resource claim "gpu"`,
		},
		"equal pods say it once": {
			work: work(podSpec(func(s *corev1.PodSpec) { s.HostNetwork = true }), func(w *policy.Work) { w.Pods = append(w.Pods, w.Pods[0]) }),
			want: "HOST_NETWORK: the pod uses the network, processes or IPC of its node",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, say(policy.Leaving().Evaluate(tt.work))); diff != "" {
				t.Errorf("Evaluate() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestClassOf(t *testing.T) {
	tests := map[string]struct {
		work policy.Work
		want policy.Class
	}{
		"the tenant's class": {
			work(func(w *policy.Work) { w.Inputs = []string{"s3://results/x/"} }), policy.Internal,
		},
		"work that names no data may use all sources, the highest class counts": {work(), policy.Confidential},
		"an input around a source holds what lies in it": {
			work(func(w *policy.Work) {
				w.Tenant.Spec.Sources = append(w.Tenant.Spec.Sources, v1alpha1.DataSource{Name: "all", Bucket: "data"})
				w.Inputs = []string{"s3://data/"}
			}), policy.Confidential,
		},
		"and one beside it does not": {
			work(func(w *policy.Work) { w.Inputs = []string{"s3://data/training/"} }), policy.Internal,
		},
		"an annotation raises it": {
			work(func(w *policy.Work) { w.DataClass = "secret" }), policy.Secret,
		},
		"an annotation never lowers it": {
			work(func(w *policy.Work) { w.DataClass, w.Outputs = "public", []string{"s3://results/x/"} }), policy.Internal,
		},
		"the highest class of any input wins": {
			work(func(w *policy.Work) { w.Inputs = []string{"s3://results/x/", "s3://data/train/y/"} }), policy.Confidential,
		},
		"what nobody knows is nothing": {
			work(func(w *policy.Work) { w.DataClass = "Secret" }), "",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := policy.ClassOf(tt.work); got != tt.want {
				t.Errorf("ClassOf() = %q, want %q", got, tt.want)
			}
		})
	}
}

// Every refusal says which rule it came from and what its reader can do.
func TestRefusalsAreComplete(t *testing.T) {
	broken := trip(func(t *policy.Trip) { t.Offer.Price = money.Rate{} }, spec(func(p *v1alpha1.BurstProviderSpec) { p.Certifications, p.ProcessingAgreement = nil, nil }))
	for _, r := range policy.Going().Evaluate(broken) {
		if r.Rule == "" || r.Code == "" || r.Message == "" || r.Remedy == "" {
			t.Errorf("incomplete: %+v", r)
		}
	}
}

// How fresh reads must be is said class by class; where nothing is said, each is
// asked about.
func TestFreshnessOf(t *testing.T) {
	lease := &v1alpha1.Freshness{Mode: v1alpha1.FreshnessLease, Seconds: 30}
	tenant := trip(rule(func(r *v1alpha1.DataRule) { r.Freshness = lease })).Tenant
	tenant.Spec.Burst.DataRules = append(tenant.Spec.Burst.DataRules, v1alpha1.DataRule{Class: "public"})
	for class, want := range map[policy.Class]*v1alpha1.Freshness{
		policy.Confidential: lease, policy.Public: nil, policy.Secret: nil, "": nil,
	} {
		got := policy.FreshnessOf(&tenant, class)
		if (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("%s: %v, want %v", class, got, want)
		}
	}
	policy.FreshnessOf(&tenant, policy.Confidential).Seconds = 9
	if lease.Seconds != 30 {
		t.Error("what is returned is the tenant's own")
	}
}

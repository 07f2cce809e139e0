package plan_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/autoscaler/policy"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/quota/money"
)

// Each code that there is happens in one of the cases below, or in the manifests
// of package observe, and reads as it always has: the thing, the reason, the
// remedy. Run with -update to accept a change of wording.
func TestEachReasonIsExplained(t *testing.T) {
	all := map[plan.Code]given{}
	for _, cases := range []map[plan.Code]given{ofTheWork(), ofMoney(), ofTheMarket(), ofFit(), ofWhatLeaves(), ofWhereItGoes()} {
		for code, g := range cases {
			all[code] = g
		}
	}
	var texts []string
	for code, g := range all {
		found := reasonsOf(plan.Decide(g.s), code)
		if len(found) == 0 {
			t.Errorf("%s does not happen in its case:\n%s", code, plan.Decide(g.s).Explain())
			continue
		}
		if r := found[0]; r.Message == "" || r.Remedy == "" && r.Code != plan.Bursts {
			t.Errorf("a person can't act on %q", r)
		}
		texts = append(texts, found[0].String())
	}
	slices.Sort(texts)
	golden(t, filepath.Join("testdata", "reasons.txt"), strings.Join(texts, "\n")+"\n")

	elsewhere := readAll(t, "../observe/testdata/held.golden") + readAll(t, "testdata/about/nothing.txt")
	for _, code := range slices.Concat(constants(t, "codes.go"), constants(t, "../policy/codes.go")) {
		_, here := all[code]
		switch {
		case !here && !strings.Contains(elsewhere, ": "+string(code)+": "):
			t.Errorf("%s has no case: what would a person read?", code)
		}
	}
}

// reasonsOf are the reasons with a code in a plan, those against single offers
// before those that sum them up.
func reasonsOf(p plan.Plan, code plan.Code) []plan.Reason {
	var found, summed []plan.Reason
	for _, d := range p.Decisions {
		if d.Code == code {
			summed = append(summed, d.Reason)
		}
		for _, f := range d.Refusals {
			if f.Code == code {
				found = append(found, f.Reason)
			}
		}
	}
	return append(found, summed...)
}

func readAll(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// constants are the values of the string constants of a file.
func constants(t *testing.T, file string) []plan.Code {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var codes []plan.Code
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for _, value := range spec.Values {
			if literal, ok := value.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				text, err := strconv.Unquote(literal.Value)
				if err != nil {
					t.Fatal(err)
				}
				codes = append(codes, plan.Code(text))
			}
		}
		return true
	})
	if len(codes) < 20 {
		t.Fatalf("%s has %d codes", file, len(codes))
	}
	return codes
}

// wants2 is a Job of two GPUs that has no place at home.
func wants2() given {
	return site().node("rack1", 2).running("old", "rack1", 2, 0).gang("train", 2)
}

func ofTheWork() map[plan.Code]given {
	sold := wants2().offer("ovh", 2, "2 EUR")
	failed := sold.burst("train", "ovh", "Ending=JoinDeadline", v1alpha1.Failed)
	twice := sold.node("rack1", 2)
	return map[plan.Code]given{
		plan.Bursts:              sold,
		plan.WouldBurst:          sold.mode(v1alpha1.ModeObserve),
		plan.Undecidable:         twice,
		plan.FitsLocally:         site().node("rack1", 2).gang("train", 2),
		plan.NotUnschedulableYet: sold.waiting(time.Second),
		plan.LocalChance:         sold.waiting(2 * time.Minute),
		plan.WaitingLocalETA:     site().node("rack1", 2).running("old", "rack1", 2, 8*time.Minute).gang("train", 2).offer("ovh", 2, "2 EUR"),
		plan.AlreadyPlanned:      sold.burst("train", "ovh", v1alpha1.Reserved),
		plan.BackoffAfterFailure: failed.justNow(),
		plan.AttemptsExhausted:   failed.burst("train", "ovh", v1alpha1.Failed).burst("train", "ovh", v1alpha1.Failed).burst("train", "ovh", v1alpha1.Failed).burst("train", "ovh", v1alpha1.Failed),
		plan.PreemptionPossible:  sold.running("victim", "rack1", 0, 0).pods(func(p *corev1.Pod) { p.Status.NominatedNodeName = "rack1" }).leaving("victim", time.Minute),
		plan.PodTerminating:      sold.pods(func(p *corev1.Pod) { when := at(0); p.DeletionTimestamp = &when }),
		plan.GangIncomplete:      sold.together().work(func(w *plan.Gang) { w.Size = 4 }),
		plan.GangSplit:           sold.together().work(func(w *plan.Gang) { w.Bound = 1 }),
		plan.NodeNameSet:         sold.pods(func(p *corev1.Pod) { p.Spec.NodeName = "rack1" }),
		plan.NoGPU:               site().gang("web", 0),
		plan.OwnerUnsupported:    sold.namespace("vision", v1alpha1.SystemLabel, "true"),
		plan.DeadlineTooShort:    sold.work(func(w *plan.Gang) { w.EndsBy = now().Add(9 * time.Minute) }),
	}
}

func ofMoney() map[plan.Code]given {
	sold := wants2().offer("ovh", 2, "2 EUR")
	overrun := sold
	overrun.s.Book = overrun.s.Book.Clone()
	overrun.s.Book.Overrun = map[money.Currency]money.Amount{"EUR": amount("4.20 EUR")}
	return map[plan.Code]given{
		plan.TenantUnknown:       site().gangOf("nobody", "stray", 2),
		plan.NamespaceNotEnabled: sold.mode(v1alpha1.ModeOff),
		plan.ServicesNotEnabled:  sold.work(func(w *plan.Gang) { w.Service, w.Owner.Kind = true, "Deployment" }),
		plan.NoMaxRuntime:        sold.endless().rules(func(s *v1alpha1.BurstTenantSpec) { s.Burst.MaxRunTime = nil }),
		plan.BudgetExceeds:       sold.budget("vision-month", "3 EUR"),
		plan.BudgetMissing:       sold.noBudget(),
		plan.BudgetRefused:       overrun,
		plan.CeilingOutOfRange:   sold.work(func(w *plan.Gang) { w.MaxRun = 2 * 366 * 24 * time.Hour }),
		plan.CurrencyMismatch:    wants2().offer("zurich", 2, "2 CHF"),
		plan.PriceUnknown:        wants2().offer("ovh", 2, ""),
	}
}

func ofTheMarket() map[plan.Code]given {
	sold := wants2().offer("ovh", 2, "2 EUR")
	return map[plan.Code]given{
		plan.NoOffer:         wants2(),
		plan.Capacity:        sold.soldOut(),
		plan.DatasetTooLarge: sold.line(10, "").reads(1 << 40),
		plan.EarlierAttempt:  sold.burst("train", "ovh", "Ending=JoinDeadline", v1alpha1.Failed),
		plan.ProviderQuota:   sold.seller(func(p *v1alpha1.BurstProvider, _ *providers.Offer) { p.Spec.Limits.GPUs = number(1) }),
		plan.QuotaCloudGPU: sold.rules(func(s *v1alpha1.BurstTenantSpec) {
			s.Quota = []v1alpha1.GPUQuota{{GPUModel: "L40S-48", HardCap: number(1)}}
		}),
		plan.GangNeedsFabric: site().gang("ring", 1).times(2).together().work(func(w *plan.Gang) { w.Fabrics = []string{"any"} }).offer("ovh", 1, "2 EUR"),
		plan.GangTooLarge:    site().gang("huge", 1).times(17).together().offer("ovh", 1, "2 EUR"),
	}
}

func ofFit() map[plan.Code]given {
	sold := wants2().offer("ovh", 2, "2 EUR")
	selecting := func(key, value string) given {
		return sold.pods(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{key: value} })
	}
	near := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "store"}}
	return map[plan.Code]given{
		plan.GPUModelNotOffered:        selecting("nvidia.com/gpu.product", "NVIDIA-H200"),
		plan.NodeSelectorUnsatisfiable: selecting("rack", "7"),
		plan.GPUCountPerNode:           site().gang("train", 8).offer("ovh", 2, "2 EUR"),
		plan.ExtendedResourceUnknown: sold.pods(func(p *corev1.Pod) {
			r := p.Spec.Containers[0].Resources.Requests
			r["nvidia.com/mig-1g.5gb"] = r["nvidia.com/gpu"]
			delete(r, "nvidia.com/gpu")
		}),
		plan.PodAffinityOnPrem: sold.pods(func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, LabelSelector: near}},
			}}
		}),
		plan.TopologySpread: sold.pods(func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{
				{MaxSkew: 1, TopologyKey: "rack", WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: near},
			}
		}),
		plan.MachineTooSmall: sold.pods(func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = *newQuantity(64 << 30)
		}),
		plan.LocalPV: sold.onPremVolume("data"),
		// A feature that the node would have to declare: no code speaks of that filter.
		plan.OtherReason: sold.pods(func(p *corev1.Pod) {
			p.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{{
				Action:    corev1.ContainerRestartRuleActionRestartAllContainers,
				ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
			}}
		}),
	}
}

// ofWhatLeaves are the policy's reasons against the work itself.
func ofWhatLeaves() map[plan.Code]given {
	sold := wants2().offer("ovh", 2, "2 EUR")
	mounting := func(v corev1.VolumeSource) given {
		return sold.pods(func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: v}} })
	}
	yes := true
	unbound := mounting(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}})
	unbound.s.Cluster.Claims = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Namespace: "vision", Name: "data"}}}
	bound := unbound
	bound.s.Cluster.Claims = []corev1.PersistentVolumeClaim{*unbound.s.Cluster.Claims[0].DeepCopy()}
	bound.s.Cluster.Claims[0].Spec.VolumeName = "pv-7"
	cases := map[plan.Code]given{
		policy.DataClassUnknown:    sold.work(func(w *plan.Gang) { w.DataClass = "top" }),
		policy.DatasetNotStageable: sold.work(func(w *plan.Gang) { w.Inputs = []string{"s3://elsewhere/in"} }),
		policy.ResultPrefixMissing: sold.work(func(w *plan.Gang) { w.Outputs = []string{"s3://elsewhere/out"} }),
		policy.TLSNotCacheable: sold.rules(func(s *v1alpha1.BurstTenantSpec) {
			s.Sources = []v1alpha1.DataSource{{Name: "sets", Endpoint: "https://s3.onprem.example", Bucket: "sets"}}
		}),
		policy.PriorityNotEnabled: sold.rules(func(s *v1alpha1.BurstTenantSpec) { s.Burst.PriorityClasses = []string{"urgent"} }),
		policy.PVCUnbound:         unbound,
		policy.PVCNotBurstable:    bound,
		policy.VolumeNotBurstable: mounting(corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "filer", Path: "/"}}),
		policy.HostPathForbidden:  mounting(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}}),
	}
	for code, change := range map[plan.Code]func(*corev1.Pod){
		policy.HostNetwork: func(p *corev1.Pod) { p.Spec.HostNetwork = true },
		policy.HostPort:    func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}} },
		policy.PrivilegedForbidden: func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
		},
		policy.WildcardToleration:  func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} },
		policy.DRAClaimUnsupported: func(p *corev1.Pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}} },
	} {
		cases[code] = sold.pods(change)
	}
	return cases
}

// ofWhereItGoes are the policy's reasons against a provider.
func ofWhereItGoes() map[plan.Code]given {
	sold := wants2().offer("ovh", 2, "2 EUR")
	rule := func(change func(*v1alpha1.DataRule)) given {
		return sold.rules(func(s *v1alpha1.BurstTenantSpec) { change(&s.Burst.DataRules[0]) })
	}
	certified := func(expires metav1.Time) given {
		return rule(func(r *v1alpha1.DataRule) { r.RequiredCertifications = []string{"C5"} }).seller(func(p *v1alpha1.BurstProvider, _ *providers.Offer) {
			old := v1alpha1.Evidence{Link: "https://example.org/c5", Reviewed: at(-24 * time.Hour), Expires: expires}
			p.Spec.Certifications = []v1alpha1.Certification{{Name: "C5", Evidence: old}}
		})
	}
	cases := map[plan.Code]given{
		policy.DataClassForbidsCloud: rule(func(r *v1alpha1.DataRule) { r.Class = "internal" }),
		policy.ProviderNotAllowed:    rule(func(r *v1alpha1.DataRule) { r.Providers = []string{"hetzner"} }),
		policy.CertificationMissing:  rule(func(r *v1alpha1.DataRule) { r.RequiredCertifications = []string{"C5"} }),
		policy.CertificationExpired:  certified(at(-time.Hour)),
		policy.JurisdictionLaw:       sold.american(),
		policy.JurisdictionNobody:    sold.american(),
	}
	for code, change := range map[plan.Code]func(*v1alpha1.BurstProvider, *providers.Offer){
		policy.ProviderUnknown:   func(p *v1alpha1.BurstProvider, _ *providers.Offer) { p.Name = "other" },
		policy.RegionExcluded:    func(p *v1alpha1.BurstProvider, o *providers.Offer) { p.Spec.Country, o.Country = "CH", "CH" },
		policy.JurisdictionFacts: func(p *v1alpha1.BurstProvider, _ *providers.Offer) { p.Spec.Legal.Evidence = nil },
		policy.AgreementMissing:  func(p *v1alpha1.BurstProvider, _ *providers.Offer) { p.Spec.ProcessingAgreement = nil },
		policy.AgreementExpired: func(p *v1alpha1.BurstProvider, _ *providers.Offer) {
			p.Spec.ProcessingAgreement.Expires = at(-time.Hour)
		},
		policy.ProviderUnavailable: func(p *v1alpha1.BurstProvider, _ *providers.Offer) {
			until := at(time.Hour)
			p.Status.UnavailableUntil = &until
		},
		policy.ProviderLeaving: func(p *v1alpha1.BurstProvider, _ *providers.Offer) { when := at(0); p.DeletionTimestamp = &when },
		policy.ProviderNoNodes: func(p *v1alpha1.BurstProvider, _ *providers.Offer) {
			p.Status.Conditions = []metav1.Condition{{Type: policy.HostsNodes, Status: metav1.ConditionFalse, Reason: "NoTunnel", Message: "no tunnel reaches them"}}
		},
	} {
		cases[code] = sold.seller(change)
	}
	return cases
}

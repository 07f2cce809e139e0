package lifecycle

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/datasync"
)

// TestGangMembersAreBoundLargestFirst: what the planner fitted is bound, in
// whatever order the members are named; what fits nowhere is said.
func TestGangMembersAreBoundLargestFirst(t *testing.T) {
	for name, tt := range map[string]struct {
		gpus []int64
		want string // error
	}{
		"small ones are named first": {[]int64{1, 1, 3, 3}, ""},
		"one too many":               {[]int64{1, 3, 3, 3}, "no machine of the burst has them left"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 2, len(tt.gpus), func(b *v1alpha1.Burst) { b.Spec.Offer.GPUs = 4 })
			for i, n := range tt.gpus {
				b.pod(fmt.Sprintf("pod-%d", i), func(p *corev1.Pod) {
					p.Spec.Containers[0].Resources.Limits[gpu] = *resource.NewQuantity(n, resource.DecimalSI)
				})
			}
			burst := b.burst()
			err := b.r.bindAll(t.Context(), record{burst, b.now}, burst.Spec.Gang.Pods)
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%v, want %q", err, tt.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			used := map[string]int64{}
			for i, n := range tt.gpus {
				used[b.work.bound[fmt.Sprintf("pod-%d", i)]] += n
			}
			for _, node := range (record{burst, b.now}).nodes() {
				if used[node] != 4 {
					t.Errorf("GPUs in use by node: %v, want all four on both", used)
				}
			}
		})
	}
}

// TestSourcesOpenWholePathElements: what the gate opens is what the policy
// allows, and not what begins with the same letters.
func TestSourcesOpenWholePathElements(t *testing.T) {
	tenant := &v1alpha1.BurstTenant{}
	tenant.Spec.Sources = []v1alpha1.DataSource{{Bucket: "data", Prefixes: []string{"train"}}, {Bucket: "out", Writable: true}}
	for url, tt := range map[string]struct {
		write bool
		want  string // empty: refused
	}{
		"s3://data/train/x/":  {false, "s3://data/train/x/"},
		"s3://data/train":     {false, "s3://data/train/"},
		"s3://data/training/": {false, ""},
		"s3://data/":          {false, ""},
		"s3://data/train/":    {true, ""},
		"s3://out/a/":         {true, "s3://out/a/"},
	} {
		t.Run(url, func(t *testing.T) {
			ref, err := datasync.ParseRef(url)
			if err != nil {
				t.Fatal(err)
			}
			got, ok := within(ref, tenant, tt.write)
			if ok != (tt.want != "") || ok && got.String() != tt.want {
				t.Errorf("%s, %t; want %q", got, ok, tt.want)
			}
		})
	}
	b := &v1alpha1.Burst{}
	all, err := grants(b, tenant)
	if err != nil || len(all) != 2 || all[0].Prefix != "train/" || all[1].Prefix != "" {
		t.Errorf("grants of a burst that names no data: %+v, %v", all, err)
	}
}

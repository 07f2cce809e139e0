package plan_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spillway.dev/spillway/autoscaler/placement"
	"spillway.dev/spillway/autoscaler/plan"
)

// BenchmarkGangs is a data centre on a bad day: 2,000 nodes with 8 GPUs, 85 %
// of them in use, 500 Indexed Jobs of 1 to 64 pods that need 8 GPUs each, and 6
// providers with 40 offers each. "full" decides from nothing; nothing is kept
// between two rounds. "replan" decides again after one pod has changed, as events
// tell, and time has gone on.
func BenchmarkGangs(b *testing.B) {
	s := badDay(2000, 500)
	b.Run("full", func(b *testing.B) {
		timed(b, func(int) plan.Plan { return plan.Decide(s) })
	})
	b.Run("replan", func(b *testing.B) {
		var planner plan.Planner
		s.Cluster.Changes = &placement.Changes{From: 1, To: 2}
		planner.Decide(s)
		pods := slices.Clone(s.Cluster.Pods)
		s := s
		s.Cluster.Pods = pods
		timed(b, func(round int) plan.Plan {
			s.Now = s.Now.Add(time.Second)
			p := pods[round%len(pods)].DeepCopy()
			pods[round%len(pods)] = p
			p.ResourceVersion = fmt.Sprintf("next-%d", round)
			p.Status.Message = "it has changed"
			n := uint64(round + 2)
			s.Cluster.Changes = &placement.Changes{From: n, To: n + 1, Pods: map[types.UID]*corev1.Pod{p.UID: p}}
			return planner.Decide(s)
		})
	})
}

func timed(b *testing.B, decide func(round int) plan.Plan) {
	var took []time.Duration
	for round := 0; b.Loop(); round++ {
		began := time.Now()
		bought := len(decide(round).Bursts())
		took = append(took, time.Since(began))
		if bought < 400 {
			b.Fatalf("%d bursts, want most of 500", bought)
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Milliseconds()), "p99-ms")
}

func badDay(nodes, gangs int) plan.State {
	r := rand.New(rand.NewPCG(42, 1))
	g := site().budget("vision-month", "1000000000 EUR")
	s := g.node("rack", 8).running("old", "rack", 8, 0).s
	node, old := s.Cluster.Nodes[0], s.Cluster.Pods[0]
	s.Cluster.Nodes, s.Cluster.Pods, s.Cluster.Ends = nil, nil, map[types.UID]time.Time{}
	for i := range nodes {
		n := node.DeepCopy()
		n.Name = fmt.Sprintf("rack%05d", i)
		n.Labels[corev1.LabelHostname] = n.Name
		n.UID, n.ResourceVersion = types.UID(n.Name), "1"
		s.Cluster.Nodes = append(s.Cluster.Nodes, n)
		for j := range []int{8, 8, 8, 8, 6, 8, 8, 6, 8, 0}[i%10] { // 85 %
			p := old.DeepCopy()
			p.Name = fmt.Sprintf("old-%05d-%d", i, j)
			p.UID, p.ResourceVersion, p.Spec.NodeName = types.UID(p.Name), "1", n.Name
			p.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = *newQuantity(1)
			s.Cluster.Pods = append(s.Cluster.Pods, p)
			if r.IntN(2) == 0 {
				s.Cluster.Ends[p.UID] = now().Add(time.Duration(r.IntN(48*60)) * time.Minute)
			}
		}
	}
	for i := range s.Cluster.Namespaces {
		ns := &s.Cluster.Namespaces[i]
		ns.UID, ns.ResourceVersion = types.UID(ns.Name), "1"
	}
	for i := range 6 {
		g = g.offer(fmt.Sprintf("p%d", i), 8, fmt.Sprintf("%d.50 EUR", 20+i))
	}
	s.Providers = g.s.Providers
	for _, o := range g.s.Offers {
		for j := range 40 {
			o.InstanceType = fmt.Sprintf("gpu-%02d", j)
			o.GPUs = []int{1, 2, 4, 8, 8}[j%5]
			o.MilliCPU, o.MemoryMiB = int64(o.GPUs)*16_000, int64(o.GPUs)*131_072
			o.Price.NanoPerHour += int64(j+1) * 1e8
			s.Offers = append(s.Offers, o)
		}
	}
	s.Settings.Machines = 64
	for i := range gangs {
		name := fmt.Sprintf("train%03d", i)
		gang := site().gang(name, 8).times(1 + r.IntN(64)).waiting(time.Hour).s.Gangs[0]
		gang.Together = i%2 == 0
		for j, p := range gang.Pods {
			p.ResourceVersion = "1"
			p.Labels = map[string]string{"app": fmt.Sprintf("train-%d", i%25), "batch.kubernetes.io/job-completion-index": fmt.Sprint(j), "job-name": name}
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = *newQuantity(int64(8 + i%8))
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "JOB_COMPLETION_INDEX", Value: fmt.Sprint(j)}}
		}
		s.Gangs = append(s.Gangs, gang)
	}
	return s
}

package main

import (
	"context"
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	fakecr "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/fake"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/injection"
	"sigs.k8s.io/karpenter/pkg/operator/logging"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/test"
)

// types400 is how many instance types karpenter's benchmark has.
const types400 = 400

// solve has karpenter schedule the pods, set up as in its own benchmark.
func solve(ctx context.Context, pods []*corev1.Pod) (outcome, error) {
	log.SetLogger(logging.NopLogger)
	ctx = options.ToContext(injection.WithControllerName(ctx, "provisioner"), test.Options())
	pool := test.NodePool(v1.NodePool{Spec: v1.NodePoolSpec{Limits: v1.Limits{
		corev1.ResourceCPU:    resource.MustParse("10000000"),
		corev1.ResourceMemory: resource.MustParse("10000000Gi"),
	}}})
	cloud := fake.NewCloudProvider()
	cloud.InstanceTypes = fake.InstanceTypes(types400)
	byPool := map[string][]*cloudprovider.InstanceType{pool.Name: cloud.InstanceTypes}
	client, clock := fakecr.NewFakeClient(), &clock.RealClock{}
	cluster := state.NewCluster(clock, client, cloud)
	workers := scheduling.NumConcurrentReconciles(5)
	topology, err := scheduling.NewTopology(ctx, client, cluster, nil, []*v1.NodePool{pool}, byPool, pods, workers)
	if err != nil {
		return outcome{}, fmt.Errorf("create topology: %w", err)
	}
	s := scheduling.NewScheduler(ctx, client, []*v1.NodePool{pool}, cluster, nil, topology, byPool, nil,
		events.NewRecorder(&record.FakeRecorder{}), clock, nil, nil, workers)
	began := time.Now()
	results, err := s.Solve(ctx, pods)
	o := outcome{took: time.Since(began), nodes: len(results.NewNodeClaims)}
	if err != nil {
		return outcome{}, err
	}
	if len(results.PodErrors) > 0 {
		return outcome{}, fmt.Errorf("%d pods were not scheduled", len(results.PodErrors))
	}
	for _, c := range results.NewNodeClaims {
		cheapest := math.Inf(1)
		for _, it := range c.InstanceTypeOptions {
			if fits := it.Offerings.Available().Compatible(c.Requirements); len(fits) > 0 {
				cheapest = min(cheapest, fits.Cheapest().Price)
			}
		}
		o.nano += int64(math.Round(cheapest * 1e9))
	}
	return o, nil
}

package placement

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// What this package takes from the scheduler is pinned here, so that an upgrade
// that changes any of it fails before a placement does. The first three methods
// of the framework and the listers are what upstream promises to outside users
// (k8s.io/kubernetes, pkg/scheduler/framework/autoscaler_contract, v1.37.2);
// Unreserve is not part of that promise, and is pinned all the more.
func TestContract(t *testing.T) {
	if got := reflect.TypeFor[contract](); !reflect.TypeFor[framework.Framework]().Implements(got) {
		t.Errorf("the framework is no %s any more", got)
	}
	for of, want := range map[reflect.Type]string{
		reflect.TypeFor[contract]():                         "RunFilterPlugins RunPreFilterPlugins RunReservePluginsReserve RunReservePluginsUnreserve",
		reflect.TypeFor[fwk.SharedLister]():                 "CompositePodGroupStates CompositePodGroups NodeInfos PodGroupStates PodGroups StorageInfos",
		reflect.TypeFor[fwk.NodeInfoLister]():               "Get HavePodsWithAffinityList HavePodsWithRequiredAntiAffinityList HavePodsWithRequiredNonHostScopedAntiAffinityList List",
		reflect.TypeFor[fwk.StorageInfoLister]():            "IsPVCUsedByPods",
		reflect.TypeFor[fwk.PodGroupLister]():               "Get",
		reflect.TypeFor[fwk.PodGroupStateLister]():          "Get",
		reflect.TypeFor[fwk.CompositePodGroupLister]():      "Get",
		reflect.TypeFor[fwk.CompositePodGroupStateLister](): "Get",
		reflect.TypeFor[fwk.SharedDRAManager]():             "DeviceClassResolver DeviceClasses ResourceClaims ResourceSlices",
		reflect.TypeFor[fwk.ResourceSliceLister]():          "ListWithDeviceTaintRules",
		reflect.TypeFor[fwk.DeviceClassLister]():            "Get List",
		reflect.TypeFor[fwk.DeviceClassResolver]():          "GetDeviceClass",
		reflect.TypeFor[fwk.ResourceClaimTracker](): "AssumeClaimAfterAPICall AssumedClaimRestore GatherAllocatedState Get GetPendingAllocation List " +
			"ListAllAllocatedDevices MaybeRemoveClaimPendingAllocation SignalClaimPendingAllocation",
	} {
		names := make([]string, of.NumMethod())
		for i := range names {
			names[i] = of.Method(i).Name
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("methods of %s: %s, want %s; see what the scheduler expects of them now", of, got, want)
		}
	}
}

// The default profile's filters are the rules that placements follow. One that
// comes or goes changes what fits.
func TestFiltersOfTheDefaultProfile(t *testing.T) {
	s, err := New(Inventory{})
	if err != nil {
		t.Fatal(err)
	}
	plugins := s.sim.filters.(framework.Framework).ListPlugins()
	var filters, first []string
	for _, p := range plugins.Filter.Enabled {
		filters = append(filters, p.Name)
	}
	for _, p := range plugins.PreFilter.Enabled {
		first = append(first, p.Name)
	}
	slices.Sort(filters)
	slices.Sort(first)
	want := []string{
		"DynamicResources", "InterPodAffinity", "NodeAffinity", "NodeDeclaredFeatures", "NodeName", "NodePorts", "NodeResourcesFit", "NodeUnschedulable",
		"NodeVolumeLimits", "PodTopologySpread", "TaintToleration", "VolumeBinding", "VolumeRestrictions", "VolumeZone",
	}
	if diff := cmp.Diff(want, filters); diff != "" {
		t.Errorf("filters (-pinned +now); is a new one in nodeFilters, and in the parity test?\n%s", diff)
	}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Errorf("filters that look at the pod first (-pinned +now):\n%s", diff)
	}
}

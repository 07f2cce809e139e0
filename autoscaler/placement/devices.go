package placement

import (
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"
)

// noDevices stands for a cluster without dynamic resource allocation: no
// claims, no slices, no classes. A pod that names a ResourceClaim therefore
// fits nowhere, with the plugin's own "not found" as the reason, and GPUs are
// counted as the extended resources that a device plugin reports.
type noDevices struct{}

var (
	_ fwk.SharedDRAManager    = noDevices{}
	_ fwk.DeviceClassResolver = noDevices{}
)

func (noDevices) ResourceClaims() fwk.ResourceClaimTracker                   { return noClaims{} }
func (noDevices) ResourceSlices() fwk.ResourceSliceLister                    { return noSlices{} }
func (noDevices) DeviceClasses() fwk.DeviceClassLister                       { return noClasses{} }
func (noDevices) DeviceClassResolver() fwk.DeviceClassResolver               { return noDevices{} }
func (noDevices) GetDeviceClass(corev1.ResourceName) *resourcev1.DeviceClass { return nil }

type noSlices struct{}

func (noSlices) ListWithDeviceTaintRules() ([]*resourcev1.ResourceSlice, error) { return nil, nil }

type noClasses struct{}

func (noClasses) List() ([]*resourcev1.DeviceClass, error) { return nil, nil }

func (noClasses) Get(name string) (*resourcev1.DeviceClass, error) {
	return nil, notFound("resource.k8s.io", "deviceclasses", name)
}

type noClaims struct{}

func (noClaims) List() ([]*resourcev1.ResourceClaim, error) { return nil, nil }

func (noClaims) Get(_, name string) (*resourcev1.ResourceClaim, error) {
	return nil, notFound("resource.k8s.io", "resourceclaims", name)
}

func (noClaims) ListAllAllocatedDevices() (sets.Set[structured.DeviceID], error) {
	return sets.New[structured.DeviceID](), nil
}

func (noClaims) GatherAllocatedState() (*structured.AllocatedState, error) {
	return &structured.AllocatedState{}, nil
}

func (noClaims) SignalClaimPendingAllocation(types.UID, *resourcev1.ResourceClaim) error { return nil }

func (noClaims) GetPendingAllocation(types.UID) *resourcev1.AllocationResult { return nil }

func (noClaims) MaybeRemoveClaimPendingAllocation(types.UID, bool) bool { return false }

func (noClaims) AssumeClaimAfterAPICall(*resourcev1.ResourceClaim) error { return nil }
func (noClaims) AssumedClaimRestore(string, string)                      {}

package ec2

import (
	"fmt"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// GPU is what a machine has: whole devices of one model.
type GPU struct {
	Model string // for example "H100-80", or "L4" for a model of one memory size
	Count int
}

// How the GPUs of a type are known.
const (
	sourceOverride = "override"
	sourceCloud    = "gpu-info"
)

// detect finds the GPUs of a type: first the operator's own statement, then what
// the cloud says. Only whole devices of one model by NVIDIA count: a part of a
// device is no GPU to a pod that asks for one.
// cases: D-44 dstack#4039, D-32 the catalogue decides
func (d *Driver) detect(t types.InstanceTypeInfo) (gpu GPU, source string, ok bool) {
	if stated, found := d.config.GPUs[string(t.InstanceType)]; found {
		return stated, sourceOverride, stated.Count > 0
	}
	if t.GpuInfo == nil || len(t.GpuInfo.Gpus) != 1 {
		return GPU{}, "", false
	}
	g := t.GpuInfo.Gpus[0]
	count := aws.ToInt32(g.Count)
	whole := g.GpuPartitionSize == nil || *g.GpuPartitionSize == 1
	if count < 1 || !whole || !strings.EqualFold(aws.ToString(g.Manufacturer), "NVIDIA") || aws.ToString(g.Name) == "" {
		return GPU{}, "", false
	}
	return GPU{model(g), int(count)}, sourceCloud, true
}

// model is the name that quotas and tariffs use. Where a model is built with
// several sizes of memory, its name tells which.
func model(g types.GpuDeviceInfo) string {
	name := strings.ToUpper(strings.ReplaceAll(aws.ToString(g.Name), " ", "-"))
	sized := []string{"V100", "A100", "H100", "H200", "B200", "B300"}
	if !slices.Contains(sized, name) || g.MemoryInfo == nil || aws.ToInt32(g.MemoryInfo.SizeInMiB) == 0 {
		return name
	}
	return fmt.Sprintf("%s-%d", name, (aws.ToInt32(g.MemoryInfo.SizeInMiB)+512)/1024)
}

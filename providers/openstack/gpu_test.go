package openstack

import (
	"testing"
)

// cases: D-32 (the catalogue decides), D-44 dstack#4039 (a fraction is no GPU)
func TestDetect(t *testing.T) {
	ovh, err := knownCloud("https://auth.cloud.ovh.net/v3")
	if err != nil {
		t.Fatal(err)
	}
	type specs = map[string]string
	tests := map[string]struct {
		cloud  cloud
		gpus   map[string]GPU
		flavor string
		specs  specs
		want   GPU // the zero GPU: not offered
		source string
	}{
		"the operator's word wins": {
			gpus: map[string]GPU{"x": {"A100-80", 4}}, flavor: "x", specs: specs{"pci_passthrough:alias": "h100:1"},
			want: GPU{"A100-80", 4}, source: sourceOverride,
		},
		"the operator keeps a flavor out": {gpus: map[string]GPU{"h100-380": {}}, cloud: ovh, flavor: "h100-380"},
		"PCI alias":                       {flavor: "g1", specs: specs{"pci_passthrough:alias": "h100:2"}, want: GPU{"H100", 2}, source: sourceSpecs},
		"PCI aliases, one a network card": {flavor: "g1", specs: specs{"pci_passthrough:alias": "cx7:1, a100-80:4"}, want: GPU{"A100", 4}, source: sourceSpecs},
		"two models are no answer":        {flavor: "g1", specs: specs{"pci_passthrough:alias": "h100:1,a100:1"}},
		"alias without a model":           {flavor: "g1", specs: specs{"pci_passthrough:alias": "gpu:1"}},
		"a network card is no GPU":        {flavor: "n1", specs: specs{"pci_passthrough:alias": "cx7:1"}},
		"alias with a broken count":       {flavor: "g1", specs: specs{"pci_passthrough:alias": "h100:many"}},
		"custom resource":                 {flavor: "g1", specs: specs{"resources:CUSTOM_GPU_H100": "1"}, want: GPU{"H100", 1}, source: sourceSpecs},
		"custom resource in a group":      {flavor: "g1", specs: specs{"resources1:CUSTOM_GPU_H100": "1"}, want: GPU{"H100", 1}, source: sourceSpecs},
		"the trait tells the model":       {flavor: "g1", specs: specs{"resources:PGPU": "8", "trait:CUSTOM_GPU_NVIDIA_L40S": "required"}, want: GPU{"L40S", 8}, source: sourceSpecs},
		"a forbidden trait tells nothing": {flavor: "g1", specs: specs{"resources:PGPU": "8", "trait:CUSTOM_GPU_NVIDIA_L40S": "forbidden"}},
		"a virtual GPU is a part of one":  {flavor: "SCS-4V-16_GNl-58-24", specs: specs{"resources:VGPU": "1"}},
		"a slice is a part of one":        {flavor: "g1", specs: specs{"resources:CUSTOM_MIG_A100": "1"}},
		"a device profile hides all":      {flavor: "h100-380", cloud: ovh, specs: specs{"accel:device_profile": "h100"}},
		"specs and table agree":           {flavor: "h100-380", cloud: ovh, specs: specs{"pci_passthrough:alias": "h100:1"}, want: GPU{"H100-80", 1}, source: sourceSpecs},
		"specs win over the table":        {flavor: "h100-380", cloud: ovh, specs: specs{"pci_passthrough:alias": "h100:2"}, want: GPU{"H100", 2}, source: sourceSpecs},
		"no resource at all":              {flavor: "b2-7", specs: specs{"hw:mem_page_size": "large", "resources:VCPU": "2"}},
		"SCS: a whole A30":                {flavor: "SCS-16V-64-500s_GNa-56-24h", want: GPU{"A30", 1}, source: sourceSCS},
		"SCS: with more behind":           {flavor: "SCS-16T-64-200s_GNa-72-24_ib", want: GPU{"A10", 1}, source: sourceSCS},
		"SCS: part of a device":           {flavor: "SCS-16V-64-500s_GNa-14-6h"},
		"SCS: a virtual one":              {flavor: "SCS-16V-64-500s_gNa-56-24h"},
		"SCS: another maker":              {flavor: "SCS-16V-64-500s_GAc-120-64h"},
		"SCS: the stated name counts":     {flavor: "gpu.large", specs: specs{"scs:name-v3": "SCS-16V-64_GNa-108-80h"}, want: GPU{"A100-80", 1}, source: sourceSCS},
		"table":                           {flavor: "l4-360", cloud: ovh, want: GPU{"L4", 4}, source: sourceTable},
		"the same name at another cloud":  {flavor: "l4-360"},
		"a number in a name is no count":  {flavor: "g6.48xlarge"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := &Driver{config: Config{GPUs: tt.gpus}, cloud: tt.cloud}
			got, source, ok := d.detect(tt.flavor, tt.specs)
			if !ok {
				got, source = GPU{}, ""
			}
			if got != tt.want || source != tt.source {
				t.Errorf("got %+v from %q, want %+v from %q", got, source, tt.want, tt.source)
			}
		})
	}
}

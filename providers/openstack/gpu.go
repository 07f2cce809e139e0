package openstack

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// GPU is what a machine has: whole devices of one model.
type GPU struct {
	Model string `json:"model"` // for example "H100-80", or "H100" when the memory isn't told
	Count int    `json:"count"`
}

// How the GPUs of a flavor are known.
const (
	sourceOverride = "override"
	sourceSpecs    = "extra-specs"
	sourceSCS      = "scs-name"
	sourceTable    = "provider-table"
)

// detect finds the GPUs of a flavor: first the operator's own statement, then
// what the cloud says in the flavor's extra specs, then names. Where nothing is
// sure, there is no answer, and the flavor is not offered; a number in a name
// is never taken for a count.
// cases: D-32 the catalogue decides; D-44 dstack#4039: a fraction is no GPU
func (d *Driver) detect(flavor string, specs map[string]string) (gpu GPU, source string, ok bool) {
	if stated, found := d.config.GPUs[flavor]; found {
		return stated, sourceOverride, stated.Count > 0
	}
	hint := readSpecs(specs)
	if hint.fraction || hint.unknown {
		return GPU{}, "", false
	}
	listed, inTable := d.cloud.gpus[flavor]
	if hint.count > 0 {
		model := hint.model
		if inTable && listed.Count == hint.count && strings.HasPrefix(listed.Model, model) {
			model = listed.Model // the table knows the memory, too
		}
		return GPU{model, hint.count}, sourceSpecs, model != ""
	}
	for _, name := range scsNames(flavor, specs) {
		if strings.Contains(strings.ToUpper(name), "_G") {
			gpu, ok = readSCS(name)
			return gpu, sourceSCS, ok
		}
	}
	return listed, sourceTable, inTable
}

// hint is what extra specs say.
type hint struct {
	count    int
	model    string
	fraction bool // a part of a device
	unknown  bool // a device, but which or how many can't be told
}

// readSpecs reads the keys by which clouds hand GPUs to machines.
func readSpecs(specs map[string]string) hint {
	var h hint
	keys := make([]string, 0, len(specs))
	for k := range specs {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, key := range keys {
		value := specs[key]
		switch {
		case key == "pci_passthrough:alias":
			for alias := range strings.SplitSeq(value, ",") {
				name, count, _ := strings.Cut(alias, ":")
				h.add(name, count)
			}
		case strings.HasPrefix(key, "resources"):
			_, class, _ := strings.Cut(key, ":")
			h.add(strings.TrimPrefix(class, "CUSTOM_"), value)
		case strings.HasPrefix(key, "trait") && value == "required":
			_, trait, _ := strings.Cut(key, ":")
			h.name(trait)
		case key == "accel:device_profile":
			h.unknown = true
		}
	}
	return h
}

// add counts a device class; one that is no GPU is left out.
func (h *hint) add(class, count string) {
	class = strings.TrimSpace(class)
	words := wordsOf(class)
	switch {
	case slices.Contains(words, "vgpu"), slices.Contains(words, "mig"):
		h.fraction = true
		return
	case !slices.Contains(words, "gpu") && !slices.Contains(words, "pgpu") && modelIn(class) == "":
		return
	}
	n, err := strconv.Atoi(strings.TrimSpace(count))
	if err != nil || n < 0 {
		h.unknown = true
		return
	}
	h.count += n
	h.name(class)
}

// name takes the model that a text names; two models in one flavor are none.
func (h *hint) name(text string) {
	model := modelIn(text)
	switch {
	case model == "" || h.model == model:
	case h.model == "":
		h.model = model
	default:
		h.unknown = true
	}
}

// models are the names by which whole devices are called.
func models() []string {
	return []string{
		"a10", "a100", "a16", "a2", "a30", "a40", "b200", "b300", "h100", "h200", "l4", "l40", "l40s", "p100", "t4", "v100", "v100s",
	}
}

// modelIn returns the one model that a text names as a word, or "".
func modelIn(text string) string {
	found := ""
	for _, w := range wordsOf(text) {
		if slices.Contains(models(), w) {
			if found != "" && found != w {
				return ""
			}
			found = w
		}
	}
	return strings.ToUpper(found)
}

func wordsOf(text string) []string {
	return strings.FieldsFunc(strings.ToLower(text), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	})
}

// scsNames are the names of a flavor in the scheme of Sovereign Cloud Stack,
// the stated ones first.
func scsNames(flavor string, specs map[string]string) []string {
	var names []string
	for _, key := range []string{"scs:name-v4", "scs:name-v3", "scs:name-v2", "scs:name-v1"} {
		if name := specs[key]; name != "" {
			names = append(names, name)
		}
	}
	if strings.HasPrefix(flavor, "SCS-") {
		names = append(names, flavor)
	}
	return names
}

// scsGPU is the part of an SCS name that tells the GPU: G for a whole device
// or g for a part, vendor, generation, processors, memory in GiB.
func scsGPU() *regexp.Regexp {
	return regexp.MustCompile(`_([Gg])([NAI])([a-z]*)-(\d+)h*-(\d+)h*(?:_|$)`)
}

// readSCS reads an SCS name (standard scs-0100-v3). It tells processors and
// memory, never a count, so only the exact size of one known device is sure.
func readSCS(name string) (GPU, bool) {
	m := scsGPU().FindStringSubmatch(name)
	if m == nil || m[1] != "G" || m[2] != "N" {
		return GPU{}, false
	}
	model, known := map[string]string{ // generation, streaming multiprocessors, GiB; NVIDIA's data sheets
		"a-108-40": "A100-40", "a-108-80": "A100-80", "a-56-24": "A30", "a-72-24": "A10", "a-84-48": "A40",
		"l-58-24": "L4", "l-142-48": "L40S", "g-132-80": "H100-80", "g-114-80": "H100-80", "g-132-141": "H200-141",
	}[m[3]+"-"+m[4]+"-"+m[5]]
	return GPU{model, 1}, known
}

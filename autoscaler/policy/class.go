package policy

import (
	"fmt"
	"slices"
	"strings"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
)

// Class is how secret data is. The zero Class is unknown and allows nothing.
type Class string

// The classes, from open to secret.
const (
	Public       Class = "public"
	Internal     Class = "internal"
	Confidential Class = "confidential"
	Secret       Class = "secret"
)

// Classes returns all classes, from open to secret.
func Classes() []Class { return []Class{Public, Internal, Confidential, Secret} }

// level orders the classes; an unknown one has no level.
func (c Class) level() (int, bool) {
	at := slices.Index(Classes(), c)
	return at, at >= 0
}

// ClassOf returns the data class of the work: the highest of what the tenant,
// the work itself and the sources that it may reach state. Those are the ones
// that its inputs and outputs touch, and all of them where it names neither. It
// is empty when any of them states something that is no class.
func ClassOf(w Work) Class {
	stated := []Class{Class(w.Tenant.Spec.DataClass)}
	if w.DataClass != "" {
		stated = append(stated, Class(w.DataClass))
	}
	for _, s := range w.Tenant.Spec.Sources {
		if s.DataClass != "" && reaches(w, s) {
			stated = append(stated, Class(s.DataClass))
		}
	}
	return Highest(stated...)
}

// reaches reports whether the work may reach a source: its inputs or outputs
// touch it, or it names neither.
func reaches(w Work, s v1alpha1.DataSource) bool {
	touched := func(url string) bool { return touches(s, url) }
	return len(w.Inputs)+len(w.Outputs) == 0 || slices.ContainsFunc(w.Inputs, touched) || slices.ContainsFunc(w.Outputs, touched)
}

// Highest returns the highest of the classes; it is empty when there is none,
// or when one of them is no class.
func Highest(stated ...Class) Class {
	highest, top := Class(""), -1
	for _, c := range stated {
		level, known := c.level()
		if !known {
			return ""
		}
		if level > top {
			highest, top = c, level
		}
	}
	return highest
}

func dataClass(w Work) []Refusal {
	if ClassOf(w) != "" {
		return nil
	}
	return refuse(DataClassUnknown,
		fmt.Sprintf("the data class is %q by the tenant and %q by the work, and not all of these are classes", w.Tenant.Spec.DataClass, w.DataClass),
		"use public, internal, confidential or secret in the tenant's dataClass and in the annotation "+v1alpha1.DataClassAnnotation)
}

func dataSources(w Work) []Refusal {
	var all []Refusal
	for _, url := range w.Inputs {
		if !slices.ContainsFunc(w.Tenant.Spec.Sources, func(s v1alpha1.DataSource) bool { return holds(s, url) }) {
			all = append(all, refuse(DatasetNotStageable,
				fmt.Sprintf("input %s is in none of the sources of tenant %s", url, w.Tenant.Name),
				"add its bucket and prefix to the tenant's sources, or correct the annotation "+v1alpha1.InputsAnnotation)...)
		}
	}
	for _, url := range w.Outputs {
		if !slices.ContainsFunc(w.Tenant.Spec.Sources, func(s v1alpha1.DataSource) bool { return s.Writable && holds(s, url) }) {
			all = append(all, refuse(ResultPrefixMissing,
				fmt.Sprintf("output %s is in none of the writable sources of tenant %s", url, w.Tenant.Name),
				"make a source of the tenant that holds it writable, or correct the annotation "+v1alpha1.OutputsAnnotation)...)
		}
	}
	return all
}

// plainSources refuses work that speaks TLS to its store. The front of a burst
// node stands at the store's name and has no certificate for it, so that each of
// the job's requests would fail, on a machine that is paid for.
func plainSources(w Work) []Refusal {
	var all []Refusal
	for _, s := range w.Tenant.Spec.Sources {
		if strings.HasPrefix(s.Endpoint, "https:") && reaches(w, s) {
			all = append(all, refuse(TLSNotCacheable,
				fmt.Sprintf("source %s of tenant %s is spoken to over TLS (%s), and a burst node has no certificate of that name", s.Name, w.Tenant.Name, s.Endpoint),
				"let the work and the source use the store's http endpoint: on a burst node it ends at the node itself, and the way home from there has TLS of its own")...)
		}
	}
	return all
}

// holds reports whether an S3 URL lies in a source. A prefix counts in whole
// path elements: "train" holds train/x and not training/x.
func holds(s v1alpha1.DataSource, url string) bool {
	key, ok := keyIn(s, url)
	return ok && slices.ContainsFunc(prefixes(s), func(prefix string) bool { return below(key, prefix) })
}

// touches reports whether an S3 URL and a source have anything in common.
func touches(s v1alpha1.DataSource, url string) bool {
	key, ok := keyIn(s, url)
	return ok && slices.ContainsFunc(prefixes(s), func(prefix string) bool { return below(key, prefix) || below(prefix, key) })
}

// keyIn returns the key of an S3 URL in the bucket of a source.
func keyIn(s v1alpha1.DataSource, url string) (key string, ok bool) {
	rest, ok := strings.CutPrefix(url, "s3://")
	if !ok {
		return "", false
	}
	bucket, key, _ := strings.Cut(rest, "/")
	return key, bucket != "" && bucket == s.Bucket && !slices.Contains(strings.Split(key, "/"), "..")
}

func prefixes(s v1alpha1.DataSource) []string {
	if len(s.Prefixes) == 0 {
		return []string{""}
	}
	return s.Prefixes
}

// below reports whether a key is a prefix or lies below it.
func below(key, prefix string) bool {
	key, prefix = strings.TrimSuffix(key, "/"), strings.TrimSuffix(prefix, "/")
	return prefix == "" || key == prefix || strings.HasPrefix(key, prefix+"/")
}

func priorityClass(w Work) []Refusal {
	allowed := w.Tenant.Spec.Burst.PriorityClasses
	if len(allowed) == 0 || slices.Contains(allowed, w.PriorityClass) {
		return nil
	}
	return refuse(PriorityNotEnabled,
		fmt.Sprintf("priority class %q of tenant %s may not cost money (these may: %s)", w.PriorityClass, w.Tenant.Name, strings.Join(slices.Sorted(slices.Values(allowed)), ", ")),
		"submit it with one of these classes, or wait for on-prem")
}

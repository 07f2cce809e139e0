package observe

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// found is one thing at the end of a path, with the names of the map keys and
// list items on the way to it.
type found struct {
	name  string
	value any
}

// at returns what lies at a path, in a fixed order. A path that leads nowhere
// leads to nothing.
func at(fields any, path string) []found {
	here := []found{{value: fields}}
	for name := range strings.SplitSeq(path, ".") {
		name, all := strings.CutSuffix(name, "[]")
		var next []found
		for _, f := range here {
			parent, _ := f.value.(map[string]any)
			child, there := parent[name]
			switch {
			case !there:
			case all:
				for key, item := range items(child) {
					next = append(next, found{strings.TrimPrefix(f.name+"-"+key, "-"), item})
				}
			default:
				next = append(next, found{f.name, child})
			}
		}
		here = next
	}
	return here
}

// items are the values of a map by key, or the items of a list by their name.
func items(parent any) iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		switch parent := parent.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(parent)) {
				if !yield(strings.ToLower(key), parent[key]) {
					return
				}
			}
		case []any:
			for i, item := range parent {
				if !yield(itemName(i, item), item) {
					return
				}
			}
		}
	}
}

func itemName(i int, item any) string {
	fields, _ := item.(map[string]any)
	for _, key := range []string{"name", "groupName"} {
		if name, ok := fields[key].(string); ok {
			return name
		}
	}
	return strconv.Itoa(i)
}

// first is the first thing at a path, nil when there is none.
func first(fields any, path string) any {
	if path != "" {
		for _, f := range at(fields, path) {
			return f.value
		}
	}
	return nil
}

// number reads a whole number; one below zero is zero.
func number(value any) (int64, bool) {
	switch value := value.(type) {
	case int64:
		return max(value, 0), true
	case float64: // as YAML is read without a schema
		if !(value > 0) { // also what is no number
			return 0, true
		}
		return int64(min(value, 1<<53)), true
	case string:
		n, err := strconv.ParseInt(value, 10, 64)
		return max(n, 0), err == nil
	}
	return 0, false
}

// instant reads a time as the API server writes it.
func instant(value any) (time.Time, bool) {
	text, _ := value.(string)
	t, err := time.Parse(time.RFC3339, text)
	return t, err == nil
}

// cutCondition parts "path=value".
func cutCondition(condition string) (path, value string, ok bool) {
	return strings.Cut(condition, "=")
}

// holdsAny reports whether any of the conditions holds.
func holdsAny(fields any, conditions []string) bool {
	return slices.ContainsFunc(conditions, func(condition string) bool {
		path, want, _ := cutCondition(condition)
		return slices.ContainsFunc(at(fields, path), func(f found) bool { return fmt.Sprint(f.value) == want })
	})
}

// wellFormed reports whether a path has no empty part.
func wellFormed(path string) bool {
	for name := range strings.SplitSeq(path, ".") {
		if strings.TrimSuffix(name, "[]") == "" || strings.ContainsAny(name, " =") {
			return false
		}
	}
	return true
}

// most bounds a count: products and sums of a few of them stay far from the end
// of an int.
const most = 1 << 20

// each counts the things of a count: how many of each, and the thing itself.
func (c Count) each(fields any) iter.Seq2[int, found] {
	return func(yield func(int, found) bool) {
		for _, f := range at(fields, c.Of) {
			n := 1
			for _, path := range c.Times {
				if factor, stated := number(first(f.value, path)); stated {
					n = min(n*int(min(factor, most)), most)
				}
			}
			if !yield(n, f) {
				return
			}
		}
	}
}

// sum adds counts up.
func sum(fields any, counts []Count) int {
	total := 0
	for _, c := range counts {
		for n := range c.each(fields) {
			total = min(total+n, most)
		}
	}
	return total
}

package observe

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"
)

// Whatever an owner states, a size is a small whole number, and reading it ends.
func TestASizeIsANumberWhateverIsStated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.OneOf(
			rapid.Map(rapid.Int64(), func(n int64) any { return n }),
			rapid.Map(rapid.Float64(), func(f float64) any { return f }),
			rapid.Map(rapid.String(), func(s string) any { return s }),
			rapid.SampledFrom([]any{nil, true, math.NaN(), []any{}, map[string]any{"a": int64(1)}}),
		)
		var list []any
		for range rapid.IntRange(0, 5).Draw(t, "items") {
			list = append(list, map[string]any{"a": number.Draw(t, "a"), "b": number.Draw(t, "b")})
		}
		fields := map[string]any{"spec": map[string]any{"list": rapid.SampledFrom([]any{list, nil, "text", map[string]any{"x": number.Draw(t, "x")}}).Draw(t, "list")}}
		if n := sum(fields, []Count{{Of: "spec.list[]", Times: []string{"a", "b"}}}); n < 0 || n > most {
			t.Fatalf("sum() = %d", n)
		}
	})
}

func TestAt(t *testing.T) {
	fields := map[string]any{"spec": map[string]any{
		"map":  map[string]any{"Worker": map[string]any{"n": int64(2)}, "Master": map[string]any{"n": int64(1)}},
		"list": []any{map[string]any{"name": "b", "deep": []any{map[string]any{"n": "x"}}}, map[string]any{"deep": []any{map[string]any{"n": "y"}, "no map"}}},
	}}
	for path, want := range map[string]string{
		"spec.map[].n":         "[{master 1} {worker 2}]", // in one order
		"spec.list[].deep[].n": "[{b-0 x} {1-0 y}]",
		"spec.map.Worker.n":    "[{ 2}]",
		"spec.nothing[].n":     "[]",
		"spec.map[].n.m":       "[]",
		"other":                "[]",
	} {
		if got := fmt.Sprint(at(fields, path)); got != want {
			t.Errorf("at(%s) = %s, want %s", path, got, want)
		}
	}
}

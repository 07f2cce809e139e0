package spillway

import (
	"strings"
	"testing"
	"testing/fstest"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestManifestsStandInTheOrderOfTheirNeeds(t *testing.T) {
	objects, err := Manifests()
	if err != nil {
		t.Fatal(err)
	}
	last := -1
	for _, object := range objects {
		if order(object) < last {
			t.Errorf("%s %s comes too late", object.GetKind(), object.GetName())
		}
		last = order(object)
		if last > 9 {
			t.Errorf("%s %s is of a kind without a place in the order", object.GetKind(), object.GetName())
		}
	}
	if len(objects) < 30 {
		t.Errorf("the chart has %d objects: files are missing", len(objects))
	}
}

// TestTheGuardThatIsAskedComesLast: an API server takes policies and bindings
// over in the order in which they were written, each kind by itself. Only when
// the last of both acts do all of them.
func TestTheGuardThatIsAskedComesLast(t *testing.T) {
	objects, err := Manifests()
	if err != nil {
		t.Fatal(err)
	}
	last := map[string]string{}
	for _, object := range objects {
		last[object.GetKind()] = object.GetName()
	}
	for _, kind := range []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} {
		if last[kind] != probed {
			t.Errorf("the last %s is %s, WaitForGuards asks %s", kind, last[kind], probed)
		}
	}
}

// TestEveryGuardActs: a policy without a binding, or with one that only warns,
// guards nothing.
func TestEveryGuardActs(t *testing.T) {
	objects, err := Manifests()
	if err != nil {
		t.Fatal(err)
	}
	denies := map[string]bool{}
	for _, object := range objects {
		if object.GetKind() == "ValidatingAdmissionPolicyBinding" {
			policy, _, _ := unstructured.NestedString(object.Object, "spec", "policyName")
			actions, _, _ := unstructured.NestedStringSlice(object.Object, "spec", "validationActions")
			denies[policy] = strings.Join(actions, ",") == "Deny"
		}
	}
	for _, object := range objects {
		if object.GetKind() != "ValidatingAdmissionPolicy" {
			continue
		}
		t.Run(object.GetName(), func(t *testing.T) {
			if !denies[object.GetName()] {
				t.Error("no binding that denies")
			}
			if fail, _, _ := unstructured.NestedString(object.Object, "spec", "failurePolicy"); fail != "Fail" {
				t.Errorf("failurePolicy %q: a guard that can't be asked must refuse", fail)
			}
			validations, _, _ := unstructured.NestedSlice(object.Object, "spec", "validations")
			for _, v := range validations {
				checkMessage(t, v.(map[string]any)["message"])
			}
		})
	}
}

// checkMessage: thing and reason, then after a colon or semicolon the remedy.
func checkMessage(t *testing.T, message any) {
	t.Helper()
	text, _ := message.(string)
	_, remedy, found := strings.Cut(text, ": ")
	if !found || len(strings.Fields(remedy)) < 2 {
		t.Errorf("message %q names no remedy", text)
	}
}

func TestReadNamesTheBrokenFile(t *testing.T) {
	tests := map[string]struct {
		text string
		want string
	}{
		"not YAML":               {"a: [", "templates/x.yaml"},
		"an object without name": {"kind: Role", "without kind or name"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Read(fstest.MapFS{"templates/x.yaml": {Data: []byte(tt.text)}}, "templates/*.yaml")
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Read() = %v, want an error with %q", err, tt.want)
			}
		})
	}
}

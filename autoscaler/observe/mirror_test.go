package observe

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"pgregory.net/rapid"

	"spillway.dev/spillway/autoscaler/placement"
)

// those are pointers to the objects given.
func those[T any](objects ...T) []*T {
	out := make([]*T, len(objects))
	for i := range objects {
		out[i] = &objects[i]
	}
	return out
}

// Whatever order events come in, the mirror has what the informer has, and who
// takes over each set of changes has the nodes and the pods that take room.
func TestMirrorIsWhatTheInformersHave(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, informer := NewMirror(), map[string]*corev1.Pod{}
		nodes := map[string]*corev1.Node{}
		follower, reads := map[types.UID]*corev1.Pod{}, placement.Changes{}
		for version := range rapid.IntRange(1, 30).Draw(t, "events") {
			name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
			old := informer[name]
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: fmt.Sprint(version)}}
			if old != nil {
				p.UID, p.Spec.NodeName = old.UID, old.Spec.NodeName
			}
			event := rapid.SampledFrom([]string{"pod", "pod", "bound", "over", "anew", "gone", "missed", "node", "no node", "read"}).Draw(t, "event")
			switch event {
			case "bound":
				p.Spec.NodeName = "rack"
			case "over":
				p.Status.Phase = corev1.PodSucceeded
			case "anew": // its end and its beginning are one event
				p.UID = types.UID(fmt.Sprint(name, version))
			}
			switch event {
			case "node":
				n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: fmt.Sprint(version)}}
				if old := nodes[name]; old != nil {
					m.tell(old, n)
				} else {
					m.tell(nil, n)
				}
				nodes[name] = n
			case "no node":
				if n := nodes[name]; n != nil {
					m.tell(n, nil)
					delete(nodes, name)
				}
			case "gone", "missed":
				if old == nil {
					continue
				}
				if event == "missed" {
					m.tell(toolscache.DeletedFinalStateUnknown{Key: name, Obj: old}, nil)
				} else {
					m.tell(old, nil)
				}
				delete(informer, name)
			case "read":
				reads = follow(t, m, reads, follower, informer, nodes)
			default:
				if old == nil {
					m.tell(nil, p)
				} else {
					m.tell(old, p)
				}
				informer[name] = p
			}
		}
		follow(t, m, reads, follower, informer, nodes)
	})
}

// follow reads the mirror, compares, and takes over the changes.
func follow(t *rapid.T, m *Mirror, before placement.Changes, follower map[types.UID]*corev1.Pod, informer map[string]*corev1.Pod, has map[string]*corev1.Node) placement.Changes {
	nodes, pods, told := m.read()
	if told.From != before.To || told.To <= told.From {
		t.Fatalf("changes from %d to %d after those to %d", told.From, told.To, before.To)
	}
	byName := func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) }
	if diff := cmp.Diff(slices.SortedFunc(maps.Values(informer), byName), slices.SortedFunc(slices.Values(pods), byName)); diff != "" {
		t.Fatalf("pods (-informer +mirror):\n%s", diff)
	}
	if got := slices.Sorted(maps.Keys(has)); len(nodes) != len(got) {
		t.Fatalf("%d nodes, want %v", len(nodes), got)
	}
	for uid, p := range told.Pods {
		if follower[uid] = p; p == nil {
			delete(follower, uid)
		}
	}
	want := map[types.UID]*corev1.Pod{}
	for _, p := range informer {
		if p.Spec.NodeName != "" && p.Status.Phase != corev1.PodSucceeded {
			want[p.UID] = p
		}
	}
	if diff := cmp.Diff(want, follower); diff != "" {
		t.Fatalf("pods that take room (-informer +changes):\n%s", diff)
	}
	return *told
}

// Who waits for something to decide on is woken by a pod, once the mirror knows.
func TestMirrorWakesWhenItKnows(t *testing.T) {
	m, woken := NewMirror(), 0
	m.Wake = func() {
		_, pods, _ := m.read()
		woken += len(pods)
	}
	m.tell(nil, &corev1.Node{})
	m.tell(nil, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a"}})
	if woken != 1 {
		t.Errorf("woken with %d pods, want 1", woken)
	}
}

package lifecycle

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/nodeagent/link"
)

// A data key goes to four agent processes of one boot at the most, each on
// record, and to each as often as it asks; a restart of the controller forgets
// none of them.
func TestReleases(t *testing.T) {
	records := newRecords(t)
	b := &v1alpha1.Burst{ObjectMeta: metav1.ObjectMeta{UID: burstUID}}
	ask := func(node, boot, process string) (bool, error) {
		s := &Stager{Records: records, Now: time.Now} // as after a restart
		return s.mayRelease(b, link.Report{Node: node, BootID: boot, HPKE: []byte(process)})
	}
	for i := range 4 {
		for range 2 {
			if ok, err := ask("n1", "boot-1", fmt.Sprint("process ", i)); !ok || err != nil {
				t.Fatalf("process %d: %v, %v", i, ok, err)
			}
		}
	}
	if ok, err := ask("n1", "boot-1", "process 4"); ok || err == nil || !strings.Contains(err.Error(), "read its log") {
		t.Errorf("the fifth process: %v, %v", ok, err)
	}
	if ok, err := ask("n1", "boot-1", "process 4"); ok || err != nil {
		t.Errorf("the fifth process again: %v, %v; it is refused, and said once", ok, err)
	}
	for name, asked := range map[string][3]string{
		"one that had it":           {"n1", "boot-1", "process 2"},
		"another boot of the node":  {"n1", "boot-2", "process 9"},
		"another node of the burst": {"n2", "boot-1", "process 9"},
	} {
		if ok, err := ask(asked[0], asked[1], asked[2]); !ok || err != nil {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
	kept, err := records.Load(string(burstUID), releasesName("n1"))
	if err != nil || strings.Count(string(kept), `"to"`) != 6 || strings.Count(string(kept), `"refused":true`) != 1 {
		t.Errorf("%s, %v", kept, err)
	}
}

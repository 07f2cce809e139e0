package observe

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	goruntime "runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/placement"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/quota"
)

// BenchmarkCluster is a large data centre through real informers, from a server
// that speaks as an API server does: 5,000 nodes and 100,000 pods of 6 KB each
// with their managed fields. Each round is a hundred pods whose status changes,
// as most events tell, and a snapshot that follows them. Beside it stands what a whole cycle takes, from
// reading to a plan, and how much memory is resident after ten of them; the
// server's part is in it.
func BenchmarkCluster(b *testing.B) {
	const nodes, pods, events = 5000, 100_000, 100
	site := newCrowd(b, nodes, pods)
	o := site.observer(b)
	s, err := o.State(b.Context())
	for began := time.Now(); err != nil && time.Since(began) < 5*time.Minute; s, err = o.State(b.Context()) {
		time.Sleep(100 * time.Millisecond)
	}
	if err != nil || len(s.Cluster.Nodes) != nodes || len(s.Cluster.Pods) != pods {
		b.Fatalf("State() has %d nodes and %d pods: %v", len(s.Cluster.Nodes), len(s.Cluster.Pods), err)
	}
	var planner plan.Planner
	var cycles time.Duration
	for range 10 {
		began := time.Now()
		if s, err = o.State(b.Context()); err != nil {
			b.Fatal(err)
		}
		planner.Decide(s)
		cycles += time.Since(began)
	}
	snapshot, err := placement.New(placement.Inventory{Nodes: s.Cluster.Nodes, Pods: s.Cluster.Pods, Changes: s.Cluster.Changes})
	if err != nil {
		b.Fatal(err)
	}
	var following time.Duration
	round := 0
	for b.Loop() {
		for i := range events {
			site.change(round*events + i)
		}
		round++
		site.await(b, o.Mirror, events)
		began := time.Now()
		_, _, changes := o.Mirror.read()
		if err := snapshot.Follow(placement.Inventory{Changes: changes}); err != nil {
			b.Fatal(err)
		}
		following += time.Since(began)
	}
	resident := residentBytes(b) // with two snapshots, the planner's and this one
	goruntime.KeepAlive(&planner)
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(round*events), "us/event")
	b.ReportMetric(float64(following.Microseconds())/float64(round*events), "us-following/event")
	b.ReportMetric(float64(cycles.Milliseconds())/10, "ms/cycle")
	b.ReportMetric(float64(resident)/1e6, "MB-resident")
}

// residentBytes is how much memory the kernel has given to this process.
func residentBytes(b *testing.B) int64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		b.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// crowd is the server's side: it makes its objects when they are asked for, so
// that it takes no memory for them.
type crowd struct {
	nodes, pods int
	url         string
	changed     chan int // numbers of pods
	lists       map[string]schema.GroupVersionKind
	encoder     *protobuf.Serializer
}

func newCrowd(b *testing.B, nodes, pods int) *crowd {
	scheme := crowdScheme(b)
	s := &crowd{nodes: nodes, pods: pods, changed: make(chan int, 1000), lists: map[string]schema.GroupVersionKind{}, encoder: protobuf.NewSerializer(scheme, scheme)}
	for kind := range scheme.AllKnownTypes() {
		plural, _ := meta.UnsafeGuessKindToResource(kind)
		path := "/apis/" + kind.GroupVersion().String() + "/" + plural.Resource
		if kind.Group == "" {
			path = "/api/v1/" + plural.Resource
		}
		s.lists[path] = kind
	}
	server := httptest.NewServer(s)
	s.url = server.URL
	b.Cleanup(server.CloseClientConnections)
	return s
}

func crowdScheme(b *testing.B) *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			b.Fatal(err)
		}
	}
	return scheme
}

// ServeHTTP streams nodes and pods to who watches from the beginning; all other
// lists are empty.
func (s *crowd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind, known := s.lists[r.URL.Path]
	streamed := kind.Kind == "Pod" || kind.Kind == "Node"
	switch watching := r.URL.Query().Get("watch") != ""; {
	case !known:
		http.NotFound(w, r)
	case watching && streamed:
		s.stream(w, r, kind.Kind)
	case r.URL.Query().Get("sendInitialEvents") != "":
		reply(w, http.StatusUnprocessableEntity, metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity,
		})
	case watching:
		w.Header().Set("Content-Type", "application/json")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	default:
		reply(w, http.StatusOK, map[string]any{
			"apiVersion": kind.GroupVersion().String(), "kind": kind.Kind + "List", "metadata": map[string]any{"resourceVersion": "1"}, "items": []any{},
		})
	}
}

func reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // who is gone needs no answer
}

func (s *crowd) stream(w http.ResponseWriter, r *http.Request, kind string) {
	w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf;stream=watch")
	frames := protobuf.LengthDelimitedFramer.NewFrameWriter(w)
	send := func(event watch.EventType, o runtime.Object) error {
		o.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
		raw, err := runtime.Encode(s.encoder, o)
		if err != nil {
			return err
		}
		data, err := (&metav1.WatchEvent{Type: string(event), Object: runtime.RawExtension{Raw: raw}}).Marshal()
		if err == nil {
			_, err = frames.Write(data)
		}
		return err
	}
	var end runtime.Object
	told := metav1.ObjectMeta{ResourceVersion: "10", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}
	var err error
	if kind == "Node" {
		end = &corev1.Node{ObjectMeta: told}
		for i := 0; i < s.nodes && err == nil; i++ {
			err = send(watch.Added, s.node(i))
		}
	} else {
		end = &corev1.Pod{ObjectMeta: told}
		for i := 0; i < s.pods && err == nil; i++ {
			err = send(watch.Added, s.pod(i, 0))
		}
	}
	if err == nil {
		err = send(watch.Bookmark, end)
	}
	for version := 1; err == nil; version++ {
		_ = http.NewResponseController(w).Flush()
		var changed chan int
		if kind == "Pod" {
			changed = s.changed
		}
		select {
		case <-r.Context().Done():
			return
		case i := <-changed:
			err = send(watch.Modified, s.pod(i, version))
		}
	}
}

func (s *crowd) change(n int) { s.changed <- n * 7919 % s.pods }

// await waits until the mirror has heard of so many pods.
func (s *crowd) await(b *testing.B, m *Mirror, events int) {
	for heard := 0; heard < events; {
		if b.Context().Err() != nil {
			b.Fatal("the events don't arrive")
		}
		time.Sleep(20 * time.Microsecond)
		m.mu.Lock()
		heard = len(m.told.Pods)
		m.mu.Unlock()
	}
}

func (s *crowd) node(i int) *corev1.Node {
	name := fmt.Sprintf("rack-%05d", i)
	list := corev1.ResourceList{
		"cpu": resource.MustParse("128"), "memory": resource.MustParse("1Ti"), "pods": resource.MustParse("110"), "nvidia.com/gpu": resource.MustParse("8"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: "1", Labels: map[string]string{corev1.LabelHostname: name}, ManagedFields: managed(2)},
		Status:     corev1.NodeStatus{Capacity: list, Allocatable: list},
	}
}

// pod is the i-th pod in some version. It looks like one of a web service with a
// proxy beside it.
func (s *crowd) pod(i, version int) *corev1.Pod {
	name, yes := fmt.Sprintf("service-%04d-7c9f8d6b5-%05d", i/20, i), true
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: fmt.Sprintf("team-%03d", i/500), Name: name, UID: types.UID(fmt.Sprintf("3f2c0f1e-0000-4000-8000-%012d", i)),
			ResourceVersion: strconv.Itoa(100 + version), Generation: 1, CreationTimestamp: metav1.Unix(1_800_000_000, 0), ManagedFields: managed(4),
			Labels:      map[string]string{"app.kubernetes.io/name": "service", "app.kubernetes.io/instance": fmt.Sprintf("service-%04d", i/20), "pod-template-hash": "7c9f8d6b5"},
			Annotations: map[string]string{"prometheus.io/scrape": "true", "prometheus.io/port": "9090", "checksum/config": strings.Repeat("0123456789abcdef", 4)},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: fmt.Sprintf("service-%04d-7c9f8d6b5", i/20), UID: types.UID(fmt.Sprintf("set-%d", i/20)), Controller: &yes,
			}},
		},
		Spec: corev1.PodSpec{
			NodeName: fmt.Sprintf("rack-%05d", i%s.nodes), ServiceAccountName: "service", SchedulerName: corev1.DefaultSchedulerName,
			Tolerations: []corev1.Toleration{{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.2.3", HostIP: "192.168.1.2", Message: strconv.Itoa(version)},
	}
	for _, container := range []string{"main", "proxy"} {
		c := corev1.Container{
			Name: container, Image: "registry.example/" + container + ":v1.2.3", Args: []string{"--config=/etc/config.yaml", "--listen=:8080"},
			Resources:    corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("500m"), "memory": resource.MustParse("1Gi")}},
			VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/etc/config"}},
		}
		for e := range 10 {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%02d", e), Value: "the value of this setting"})
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: container, Image: c.Image, Ready: true, Resources: &c.Resources, AllocatedResources: c.Resources.Requests, ContainerID: "containerd://" + strings.Repeat("ab", 32), ImageID: "sha256:" + strings.Repeat("cd", 32),
		})
	}
	p.Spec.Volumes = []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "service"}}}}}
	for _, c := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: c, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Unix(1_800_000_000, 0)})
	}
	return p
}

// managed is who wrote which field.
func managed(writers int) (all []metav1.ManagedFieldsEntry) {
	fields := `{"f:metadata":{"f:labels":{` + strings.TrimSuffix(strings.Repeat(`"f:example.com/some-label":{},`, 12), ",") + `}}}`
	for range writers {
		all = append(all, metav1.ManagedFieldsEntry{
			Manager: "kube-controller-manager", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
		})
	}
	return all
}

// observer watches the server as a controller does.
func (s *crowd) observer(b *testing.B) *Observer {
	scheme := crowdScheme(b)
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range s.lists {
		scope := meta.RESTScopeNamespace
		if kind.Kind == "Node" {
			scope = meta.RESTScopeRoot
		}
		mapper.Add(kind, scope)
	}
	informers, err := cache.New(&rest.Config{Host: s.url, QPS: -1}, cache.Options{Scheme: scheme, Mapper: mapper, DefaultTransform: cache.TransformStripManagedFields(), ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: {Transform: (&LeanPods{}).Transform}}})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- informers.Start(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
	table, err := NewTable()
	if err != nil {
		b.Fatal(err)
	}
	mirror := NewMirror()
	if err := mirror.Follow(ctx, informers); err != nil {
		b.Fatal(err)
	}
	return &Observer{
		Cache: informers, Mirror: mirror, Synced: informers.WaitForCacheSync, Table: table, Offers: nothing{}, Now: time.Now,
		Book: func(context.Context) (quota.Book, error) { return quota.Book{}, nil },
	}
}

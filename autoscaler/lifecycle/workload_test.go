package lifecycle

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
)

// TestEveryContainersLogIsKept: without the name of a container, the API
// server refuses the log of a pod that has several, for ever.
func TestEveryContainersLogIsKept(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "p"}}
	pod.Spec.NodeName = "n"
	pod.Spec.Containers = []corev1.Container{{Name: "main"}, {Name: "sidecar"}, {Name: "unborn"}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{
		{Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}},
		{Name: "unborn", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}},
	}
	kube := kubefake.NewClientset(pod)
	kube.PrependReactor("get", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "log" {
			return false, nil, nil
		}
		opts, _ := a.(clienttesting.GenericActionImpl).Value.(*corev1.PodLogOptions)
		if opts.Container == "" || opts.Container == "unborn" {
			return true, nil, apierrors.NewBadRequest("container " + opts.Container)
		}
		return true, &runtime.Unknown{Raw: []byte("log of " + opts.Container + "\n")}, nil
	})
	got, err := (&Pods{Kubelets: kube}).Logs(t.Context(), team, "p")
	if want := "==> main <==\nlog of main\n==> sidecar <==\nlog of sidecar\n"; err != nil || string(got) != want {
		t.Errorf("Logs() = %q, %v; want %q", got, err, want)
	}
	if _, err := (&Pods{Kubelets: kube}).Logs(t.Context(), team, "gone"); !apierrors.IsNotFound(err) {
		t.Errorf("the log of a pod that is gone: %v, want NotFound", err)
	}
}

func TestALogIsKeptByItsEnd(t *testing.T) {
	long := strings.Repeat("x", 1000) + "the end"
	got, err := tail(io.NopCloser(strings.NewReader(long)), 10)
	if err != nil || string(got) != long[len(long)-10:] {
		t.Errorf("tail() = %q, %v", got, err)
	}
	broken := io.NopCloser(io.MultiReader(strings.NewReader("x"), iotestError{}))
	if _, err := tail(broken, 10); err == nil {
		t.Error("half a log counts as a whole one")
	}
}

type iotestError struct{}

func (iotestError) Read([]byte) (int, error) { return 0, errors.New("cut") }

// TestAnOwnersKindIsTheUsersWord: a pod may name any kind as its owner. The
// cache is never asked for one that is not cached anyhow: it would be waited
// for without end, and the whole planning cycle with it.
func TestAnOwnersKindIsTheUsersWord(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "train", UID: "job"}}
	api := fakeclient.NewClientBuilder().WithScheme(scheme).WithObjects(job).Build()
	var cached []string
	cache := interceptor.NewClient(api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			cached = append(cached, o.GetObjectKind().GroupVersionKind().Kind)
			return c.Get(ctx, key, o, opts...)
		},
	})
	live := interceptor.NewClient(api, interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "x", errors.New("RBAC"))
		},
	})
	heard := events.NewFakeRecorder(10)
	p := &Pods{Client: cache, Owners: live, Events: heard}
	for _, o := range []plan.Owner{
		{APIVersion: "v1", Kind: "ConfigMap", Namespace: team, Name: "x", UID: "x"},
		{APIVersion: "v1", Kind: "Pod", Namespace: team, Name: "bare", UID: "bare"}, // only the approver may change it
		{APIVersion: "batch/v1", Kind: "Job", Namespace: team, Name: "train", UID: "job"},
	} {
		if err := p.TellOwner(t.Context(), o, "BurstRefused", "no money"); err != nil {
			t.Errorf("TellOwner(%s) = %v", o, err)
		}
		if got := <-heard.Events; !strings.Contains(got, "BurstRefused no money") {
			t.Errorf("event for %s: %q", o, got)
		}
	}
	if len(cached) != 1 || cached[0] != "Job" {
		t.Errorf("the cache was asked for %v, want Jobs only", cached)
	}
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil || job.Annotations[v1alpha1.StatusAnnotation] == "" {
		t.Errorf("the Job is not annotated: %v, %v", job.Annotations, err)
	}
}

// TestTheNewestFactIsTold, also when it is that the burst is ending: its user
// reads why while the results are still on their way.
func TestTheNewestFactIsTold(t *testing.T) {
	b := record{Burst: &v1alpha1.Burst{}, now: time.Unix(1_800_000_000, 0)}
	tell := func(fact, want string) {
		t.Helper()
		b.note(fact, metav1.ConditionTrue, "Done", "about "+fact)
		if got, text := story(b.Burst); got != want || !strings.HasPrefix(text, "about "+want) {
			t.Errorf("behind %s the story is %s: %s", fact, got, text)
		}
	}
	tell(v1alpha1.Reserved, v1alpha1.Reserved)
	tell(v1alpha1.StagingStarted, v1alpha1.StagingStarted) // within one second the later step counts
	b.now = b.now.Add(time.Minute)
	tell(v1alpha1.PodsAdmitted, v1alpha1.PodsAdmitted)
	b.now = b.now.Add(time.Minute)
	tell(v1alpha1.Ending, v1alpha1.Ending)
	b.now = b.now.Add(time.Minute)
	tell(v1alpha1.Staged, v1alpha1.Staged)
}

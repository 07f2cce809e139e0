package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"spillway.dev/spillway/autoscaler/bootstrap"
)

// joinerTries: a join token is worth one certificate of one node, and sees no
// more of the cluster than "kubeadm join" needs.
func (g *guarded) joinerTries(t *testing.T) map[string]attempt {
	by := g.joiner
	ask := func(csr *certificatesv1.CertificateSigningRequest) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := by.kube.CertificatesV1().CertificateSigningRequests().Create(ctx, csr, metav1.CreateOptions{})
			return err
		}
	}
	kubelet := certificatesv1.KubeAPIServerClientKubeletSignerName
	eventually(t, "the API server knows the join token", func(ctx context.Context) (bool, string) {
		err := ask(newRequest(t, "for-"+stranger, kubelet, stranger))(ctx)
		if err == nil || apierrors.IsAlreadyExists(err) {
			return true, ""
		}
		return false, err.Error()
	})
	return map[string]attempt{
		"asks for its own certificate: may":          {ask(newRequest(t, "for-"+rented, kubelet, rented)), ""},
		"asks for a certificate of an administrator": {ask(newRequest(t, "x", certificatesv1.KubeAPIServerClientSignerName, rented)), "client certificate of a node only"},
		"approves its own request":                   {func(ctx context.Context) error { return g.approve(ctx, by, "for-"+stranger) }, "cannot update resource"},
		"registers a node":                           {by.rest("POST", "/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"`+stranger+`"}}`), "cannot create resource"},
		"reads secrets":                              {by.rest("GET", "/api/v1/namespaces/kube-system/secrets", ""), "cannot list resource"},
		"reads pods":                                 {by.rest("GET", "/api/v1/pods", ""), "cannot list resource"},
		"lists nodes":                                {by.rest("GET", "/api/v1/nodes", ""), "cannot list resource"},
		"reads a config of the cluster":              {by.rest("GET", "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication", ""), "cannot get resource"},
		"reads bursts":                               {by.rest("GET", bursts, ""), "cannot list resource"},
		"reads machines":                             {by.rest("GET", ofOurs, ""), "cannot get resource"},
		"looks for a node of its name: may":          {by.rest("GET", "/api/v1/nodes/"+rented, ""), ""},
	}
}

// nodeTries: a burst node is a stranger's machine with a node's identity.
func (g *guarded) nodeTries() map[string]attempt {
	by := g.node
	open := burstNode(stranger)
	open.Spec.Taints = nil
	half := burstNode(stranger)
	half.Spec.Taints = half.Spec.Taints[:1]
	nameless := burstNode(stranger)
	nameless.Spec.ProviderID = ""
	twoBursts := burstNode(stranger)
	twoBursts.Spec.Taints[1].Value = "other"
	foreign := burstNode(stranger)
	for i := range foreign.Spec.Taints {
		foreign.Spec.Taints[i].Value = burstUID
	}
	usurper := burstNode(stranger)
	usurper.Spec.ProviderID = burstNode(rented).Spec.ProviderID
	register := func(by actor, node *corev1.Node) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := by.kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
			return err
		}
	}
	mirror := func(name, node string) *corev1.Pod {
		return newPod(name, func(p *corev1.Pod) {
			p.Namespace, p.Spec.NodeName = "kube-system", node
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
			controls := true
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: "u", Controller: &controls}}
		})
	}
	const atHome = "/api/v1/namespaces/" + team + "/pods/at-home"
	return map[string]attempt{
		"registers without its taint":             {register(g.unborn, open), "must register with the taint"},
		"registers with half its taint":           {register(g.unborn, half), "must register with the taint"},
		"registers with the taints of two bursts": {register(g.unborn, twoBursts), "must register with the taint"},
		"registers without its provider id":       {register(g.unborn, nameless), "must register with the provider id"},
		"registers with another burst's taint":    {register(g.unborn, foreign), "must be of one burst"},
		"registers as another burst's machine":    {register(g.unborn, usurper), "must be of one burst"},
		"registers under another name":            {register(by, burstNode(stranger)), "not allowed"},
		"takes its own taint off":                 {by.rest("PATCH", "/api/v1/nodes/"+rented, `{"spec":{"taints":null}}`), "is not allowed to modify taints"},
		"says that another node's pod has ended":  {by.rest("PATCH", atHome+"/status", `{"status":{"phase":"Succeeded"}}`), "can only update pod status for pods with spec.nodeName set to itself"},
		"deletes another node's pod":              {by.rest("DELETE", atHome, ""), "can only delete pods with spec.nodeName set to itself"},
		"reads another node's pod":                {by.rest("GET", atHome, ""), "no relationship found"},
		"lists the pods of all nodes":             {by.rest("GET", "/api/v1/pods", ""), "can only list/watch pods with spec.nodeName field selector"},
		"reads a Secret of another node's pod":    {by.rest("GET", "/api/v1/namespaces/"+team+"/secrets/s3-keys", ""), "no relationship found"},
		"binds a pod to itself":                   {by.bind(team, "plain", rented), "cannot create resource"},
		"adds our toleration to a pod":            {by.patch(team, "plain", addOurs), "cannot patch resource"},
		"puts a mirror pod on another node":       {by.create(mirror("m", home)), "can only create pods with spec.nodeName set to itself"},
		"changes another node":                    {by.rest("PATCH", "/api/v1/nodes/"+home, `{"metadata":{"labels":{"a":"b"}}}`), "is not allowed to modify node"},
		"reads bursts":                            {by.rest("GET", bursts, ""), "cannot list resource"},
		"removes its machine's record":            {by.rest("DELETE", ofOurs, ""), "cannot delete resource"},
		"lists its own pods: may": {func(ctx context.Context) error {
			_, err := by.kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + rented})
			return err
		}, ""},
		"renews its own heartbeat: may": {by.rest("PATCH", "/api/v1/nodes/"+rented+"/status", `{"status":{"phase":"Running"}}`), ""},
	}
}

// policiesAreTyped: the API server checks expressions against the kinds that
// they match and warns of fields that don't exist.
func (g *guarded) policiesAreTyped(t *testing.T) {
	policies, err := g.admin.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, policy := range policies.Items {
		if policy.Status.TypeChecking == nil {
			continue
		}
		for _, warning := range policy.Status.TypeChecking.ExpressionWarnings {
			t.Errorf("%s %s: %s", policy.Name, warning.FieldRef, warning.Warning)
		}
	}
}

// jobIsTold: a template is only a template; its pods are refused, and the owner
// reads why.
func (g *guarded) jobIsTold(t *testing.T) {
	template := newPod("", tolerates(corev1.Toleration{Key: taintKey, Operator: corev1.TolerationOpExists}))
	must(t)(g.tenant.kube.BatchV1().Jobs(team).Create(t.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "sly"},
		Spec:       batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: template.Spec}},
	}, metav1.CreateOptions{}))
	g.awaitEvent(t, "sly", "only the approver of Spillway may add the toleration")
}

// awaitEvent waits for an event on the object whose message holds want.
func (g *guarded) awaitEvent(t *testing.T, object, want string) {
	t.Helper()
	eventually(t, "an event on "+object+" with "+want, func(ctx context.Context) (bool, string) {
		events, err := g.tenant.kube.CoreV1().Events(team).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + object})
		if err != nil {
			return false, err.Error()
		}
		var seen []string
		for _, event := range events.Items {
			seen = append(seen, event.Message)
		}
		all := strings.Join(seen, "; ")
		return strings.Contains(all, want), all
	})
}

// approvalSigns: the good path of joining.
func (g *guarded) approvalSigns(t *testing.T) {
	if err := g.approve(t.Context(), g.controller, "for-"+rented); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the certificate of the approved request", func(ctx context.Context) (bool, string) {
		csr, err := g.joiner.kube.CertificatesV1().CertificateSigningRequests().Get(ctx, "for-"+rented, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return len(csr.Status.Certificate) > 0, "no certificate"
	})
}

// nobodySigns looks at the request that the token of one node made for the
// name of another, after an approved one was signed; the controller's own
// judgement refuses it for both.
func (g *guarded) nobodySigns(t *testing.T) {
	csr, err := g.admin.kube.CertificatesV1().CertificateSigningRequests().Get(t.Context(), "for-"+stranger, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(csr.Status.Conditions) != 0 || len(csr.Status.Certificate) != 0 {
		t.Errorf("the request of another node's name was answered: %+v", csr.Status)
	}
	for _, node := range []string{rented, stranger} {
		refusal := bootstrap.ApproveCSR(csr, bootstrap.Join{Node: node, Deadline: time.Now().Add(time.Hour)}, time.Now())
		if refusal == nil {
			t.Errorf("the controller would approve it for node %s", node)
		}
		t.Logf("refused: %v", refusal)
	}
}

// approvedPodIsBound: the approver's one patch adds the toleration and lifts
// the time limits of the default ones; the scheduler does the rest. Once as the
// approver, once as the controller that speaks as the approver.
func (g *guarded) approvedPodIsBound(t *testing.T) {
	const patch = `[{"op":"add","path":"/spec/tolerations/-","value":{"key":"spillway.dev/burst","operator":"Equal","value":"` + burstUID + `"}},
		{"op":"remove","path":"/spec/tolerations/0/tolerationSeconds"},{"op":"remove","path":"/spec/tolerations/1/tolerationSeconds"}]`
	speaking := rest.CopyConfig(g.controller.config)
	speaking.Impersonate.UserName = "system:serviceaccount:" + system + ":spillway-approver"
	for pod, by := range map[string]actor{"to-patch": g.approver, "plain": newActor(t, speaking, nil)} {
		g.beat(t)
		if err := by.patch(team, pod, patch)(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, pod+" is bound to "+rented, func(ctx context.Context) (bool, string) {
			seen, err := g.tenant.kube.CoreV1().Pods(team).Get(ctx, pod, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			return seen.Spec.NodeName == rented, "on node " + seen.Spec.NodeName
		})
	}
	if err := g.tenant.patch(team, "plain", `[{"op":"add","path":"/metadata/labels","value":{"c":"d"}}]`)(t.Context()); err != nil {
		t.Errorf("an approved pod can't be labelled any more: %v", err)
	}
}

// daemonsLand: what runs on every node of the cluster runs on rented ones too,
// but only when it belongs to the cluster.
func (g *guarded) daemonsLand(t *testing.T) {
	g.beat(t)
	for _, namespace := range []string{"kube-system", team} {
		labels := map[string]string{"app": "daemon"}
		must(t)(g.insider.kube.AppsV1().DaemonSets(namespace).Create(t.Context(), &appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Name: "daemon"},
			Spec: appsv1.DaemonSetSpec{
				Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec: corev1.PodSpec{
						Containers:  []corev1.Container{{Name: "d", Image: "d"}},
						Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					},
				},
			},
		}, metav1.CreateOptions{}))
	}
	nodes := func(ctx context.Context, namespace string) string {
		pods, err := g.admin.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=daemon"})
		if err != nil {
			return err.Error()
		}
		var on []string
		for _, pod := range pods.Items {
			on = append(on, pod.Spec.NodeName)
		}
		return strings.Join(on, " ")
	}
	eventually(t, "the daemon of kube-system is on both nodes", func(ctx context.Context) (bool, string) {
		on := nodes(ctx, "kube-system")
		return strings.Contains(on, home) && strings.Contains(on, rented), on
	})
	g.awaitEvent(t, "daemon", "has a toleration without a key")
	eventually(t, "the tenant's daemon is at home", func(ctx context.Context) (bool, string) {
		on := nodes(ctx, team)
		return on == home, on
	})
}

// namespaceGoes: a Burst in a deleted namespace ends, in order: its pods first
// (no kubelet of this world answers for them, so they are forced), then the
// record, which its finalizer holds until the controller has settled.
func (g *guarded) namespaceGoes(t *testing.T) {
	if err := g.admin.kube.CoreV1().Namespaces().Delete(t.Context(), team, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	now := int64(0)
	if err := g.admin.kube.CoreV1().Pods(team).DeleteCollection(t.Context(), metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	burst := newBurst("train")
	records := g.controller.resource(burst)
	eventually(t, "the burst is told to end", func(ctx context.Context) (bool, string) {
		seen, err := records.Get(ctx, "train", metav1.GetOptions{})
		return err == nil && seen.GetDeletionTimestamp() != nil, "no deletion time"
	})
	if err := g.controller.rest("PATCH", bursts+"/train", `{"metadata":{"finalizers":null}}`)(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the burst is gone", func(ctx context.Context) (bool, string) {
		_, err := records.Get(ctx, "train", metav1.GetOptions{})
		return apierrors.IsNotFound(err), "still there"
	})
}

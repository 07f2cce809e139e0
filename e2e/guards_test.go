package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	spillway "spillway.dev/spillway/charts/spillway"
)

// attempt is something that somebody tries. It must end with a refusal that
// holds want, or pass when want is empty.
type attempt struct {
	try  func(context.Context) error
	want string
}

// TestGuards is the hostile story: each attempt meets a real API server with
// the chart applied. Tenant and insider hold every right that RBAC can give,
// so what refuses them is a guard.
func TestGuards(t *testing.T) {
	g := newGuarded(t)
	g.seed(t)
	var refusals []string
	for _, who := range []struct {
		name     string
		attempts map[string]attempt
	}{
		{"a tenant", g.tenantTries()},
		{"an insider", g.insiderTries()},
		{"the approver", g.approverTries()},
		{"the controller", g.controllerTries()},
		{"a join token", g.joinerTries(t)},
		{"a burst node", g.nodeTries()},
		{"a viewer", g.viewerTries()},
	} {
		t.Run(who.name, func(t *testing.T) {
			for _, name := range slices.Sorted(maps.Keys(who.attempts)) {
				t.Run(name, func(t *testing.T) { refusals = append(refusals, judge(t, who.attempts[name])) })
			}
		})
	}
	t.Run("every rule of every guard has refused somebody", func(t *testing.T) { everyRuleRefused(t, refusals) })
	t.Run("every policy compiles against its kinds", g.policiesAreTyped)
	t.Run("a Job whose template tolerates bursts is told why it gets no pods", g.jobIsTold)
	t.Run("the controller's approval gives a join token its certificate", g.approvalSigns)
	t.Run("a request for another node's name is signed by nobody", g.nobodySigns)
	t.Run("an approved pod runs on the burst node", g.approvedPodIsBound)
	t.Run("a daemon of the cluster itself lands on burst nodes, a tenant's does not", g.daemonsLand)
	t.Run("a deleted namespace takes its bursts along", g.namespaceGoes)
	t.Run("bad objects are refused by the name of their field", func(t *testing.T) { objectsStory(t, g.admin.dyn) })
}

// judge runs an attempt and returns the words of its refusal.
func judge(t *testing.T, a attempt) string {
	t.Helper()
	err := a.try(t.Context())
	if a.want == "" {
		if err != nil {
			t.Errorf("refused, should pass: %v", err)
		}
		return ""
	}
	if err == nil {
		t.Fatal("passed, should be refused")
	}
	if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), a.want) {
		t.Errorf("refused with\n\t%v\nwant a refusal with %q", err, a.want)
	}
	t.Logf("refused: %v", err)
	return err.Error()
}

// everyRuleRefused: a rule that no attempt meets is a rule that nobody has seen
// work. A rule is known by its message, or by the longest of its words where
// the message is computed.
func everyRuleRefused(t *testing.T, refusals []string) {
	t.Helper()
	objects, err := spillway.Manifests()
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(refusals, "\n")
	for _, object := range objects {
		rules, _, _ := unstructured.NestedSlice(object.Object, "spec", "validations")
		for i, rule := range rules {
			words, _ := rule.(map[string]any)["message"].(string)
			if computed, ok := rule.(map[string]any)["messageExpression"].(string); ok {
				words = ""
				for n, literal := range strings.Split(computed, "'") {
					if n%2 == 1 && len(literal) > len(words) {
						words = literal
					}
				}
			}
			if !strings.Contains(all, words) {
				t.Errorf("rule %d of %s refused nobody: %s", i, object.GetName(), words)
			}
		}
	}
}

// seed makes the pods that the attempts are about.
func (g *guarded) seed(t *testing.T) {
	t.Helper()
	for _, pod := range []*corev1.Pod{
		newPod("plain"), newPod("to-patch"),
		newPod("gated", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}} }),
		newPod("at-home", func(p *corev1.Pod) {
			p.Spec.NodeName = home
			p.Spec.Volumes = []corev1.Volume{{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s3-keys"}}}}
		}),
		newPod("of-the-system", func(p *corev1.Pod) { p.Namespace = "kube-system" }),
	} {
		must(t)(g.admin.kube.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{}))
	}
	must(t)(g.admin.kube.CoreV1().Secrets(team).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s3-keys"}}, metav1.CreateOptions{}))
}

func (a actor) create(pod *corev1.Pod) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := a.kube.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	}
}

// patch changes a pod by a JSON patch.
func (a actor) patch(namespace, pod, patch string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := a.kube.CoreV1().Pods(namespace).Patch(ctx, pod, types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
}

func (a actor) bind(namespace, pod, node string) func(context.Context) error {
	return func(ctx context.Context) error {
		return a.kube.CoreV1().Pods(namespace).Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: namespace},
			Target:     corev1.ObjectReference{Kind: "Node", Name: node},
		}, metav1.CreateOptions{})
	}
}

// rest sends a bare request; body may be empty.
func (a actor) rest(verb, path, body string) func(context.Context) error {
	return func(ctx context.Context) error {
		request := a.kube.CoreV1().RESTClient().Verb(verb).AbsPath(path)
		if verb == "PATCH" {
			request = request.SetHeader("Content-Type", string(types.MergePatchType))
		} else {
			request = request.SetHeader("Content-Type", "application/json")
		}
		return request.Body([]byte(body)).Do(ctx).Error()
	}
}

const (
	addOurs = `[{"op":"add","path":"/spec/tolerations/-","value":{"key":"spillway.dev/burst","operator":"Equal","value":"` + burstUID + `"}}]`
	addWild = `[{"op":"add","path":"/spec/tolerations/-","value":{"operator":"Exists"}}]`
	bursts  = "/apis/spillway.dev/v1alpha1/namespaces/" + team + "/bursts"
	ofOurs  = "/apis/infrastructure.spillway.dev/v1alpha1/namespaces/" + system + "/spillwaymachines/" + machine
	ofCAPI  = "/apis/cluster.x-k8s.io/v1beta2/namespaces/" + system + "/machines/" + machine
)

func (g *guarded) tenantTries() map[string]attempt {
	by := g.tenant
	const onlyApprover = "only the approver of Spillway may add the toleration spillway.dev/burst; leave it out"
	const noKey = "has a toleration without a key"
	const onlyController = "bursts are written by the controller of Spillway only; to end one, delete its workload"
	exists := corev1.TolerationOpExists
	binding := `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"plain"},"target":{"kind":"Node","name":"` + rented + `"}}`
	return map[string]attempt{
		"creates a pod with our toleration":       {by.create(newPod("x", tolerates(corev1.Toleration{Key: taintKey, Value: burstUID}))), onlyApprover},
		"creates a pod that tolerates any burst":  {by.create(newPod("x", tolerates(corev1.Toleration{Key: taintKey, Operator: exists}))), onlyApprover},
		"adds our toleration to its pod":          {by.patch(team, "plain", addOurs), onlyApprover},
		"creates a pod that tolerates everything": {by.create(newPod("x", tolerates(corev1.Toleration{Operator: exists}))), noKey},
		"adds a wildcard toleration to its pod":   {by.patch(team, "plain", addWild), noKey},
		"tolerates everything in two halves":      {by.create(newPod("x", tolerates(corev1.Toleration{Operator: exists, Effect: "NoSchedule"}, corev1.Toleration{Operator: exists, Effect: "NoExecute"}))), noKey},
		"adds the second half of everything later": {func(ctx context.Context) error {
			half := newPod("half", tolerates(corev1.Toleration{Operator: exists, Effect: "NoSchedule"}))
			if err := by.create(half)(ctx); err != nil {
				return fmt.Errorf("half of it must be allowed: %w", err)
			}
			return by.patch(team, "half", `[{"op":"add","path":"/spec/tolerations/-","value":{"operator":"Exists","effect":"NoExecute"}}]`)(ctx)
		}, noKey},
		"pins a wildcard pod to the burst node":         {by.create(newPod("x", tolerates(corev1.Toleration{Operator: exists}), pinned(rented))), noKey},
		"presets the burst node in nodeName":            {by.create(newPod("x", func(p *corev1.Pod) { p.Spec.NodeName = rented })), "names the burst node " + rented},
		"binds a pod to the burst node":                 {by.bind(team, "plain", rented), "may not bind pod"},
		"binds through the old bindings resource":       {by.rest("POST", "/api/v1/namespaces/"+team+"/bindings", binding), "may not bind pod"},
		"creates a Burst":                               {func(ctx context.Context) error { return g.write(ctx, by) }, onlyController},
		"deletes a Burst":                               {by.rest("DELETE", bursts+"/train", ""), onlyController},
		"deletes all Bursts":                            {by.rest("DELETE", bursts, ""), onlyController},
		"edits the spec of a Burst":                     {by.rest("PATCH", bursts+"/train", `{"spec":{"ceiling":"9000.00 EUR"}}`), "a Burst's spec is final"},
		"takes the finalizer off a Burst":               {by.rest("PATCH", bursts+"/train", `{"metadata":{"finalizers":null}}`), onlyController},
		"writes the status of a Burst":                  {by.rest("PATCH", bursts+"/train/status", `{"status":{"step":"Settled"}}`), onlyController},
		"deletes our Machine":                           {by.rest("DELETE", ofCAPI, ""), "cannot delete resource"},
		"deletes our SpillwayMachine":                   {by.rest("DELETE", ofOurs, ""), "cannot delete resource"},
		"creates a pod with other tolerations: may":     {by.create(newPod("fine", tolerates(corev1.Toleration{Key: "nvidia.com/gpu", Operator: exists}))), ""},
		"tolerates every PreferNoSchedule: may":         {by.create(newPod("fine2", tolerates(corev1.Toleration{Operator: exists, Effect: "PreferNoSchedule"}))), ""},
		"pins a wildcard pod to a node at home: may":    {by.create(newPod("fine3", tolerates(corev1.Toleration{Operator: exists}), pinned(home))), ""},
		"presets a node at home: may":                   {by.create(newPod("fine4", func(p *corev1.Pod) { p.Spec.NodeName = home })), ""},
		"lists its Bursts: may":                         {by.rest("GET", bursts, ""), ""},
		"labels its pod: may":                           {by.patch(team, "plain", `[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`), ""},
		"pins a wildcard pod to both, by two terms":     {by.create(newPod("x", tolerates(corev1.Toleration{Operator: exists}), pinned(home), pinned(rented))), noKey},
		"hides the burst node in a list of pinned ones": {by.create(newPod("x", tolerates(corev1.Toleration{Operator: exists}), pinned(home, rented))), noKey},
	}
}

// pinned requires a pod to run on one of the nodes, as a DaemonSet does. Called
// twice, the pod may run on what either names.
func pinned(nodes ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		if p.Spec.Affinity == nil {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{}}}
		}
		required := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		for _, node := range nodes {
			// one value only is what Kubernetes allows in a field requirement
			required.NodeSelectorTerms = append(required.NodeSelectorTerms, corev1.NodeSelectorTerm{
				MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			})
		}
	}
}

// write creates one more Burst.
func (g *guarded) write(ctx context.Context, by actor) error {
	burst := newBurst("second")
	_, err := by.resource(burst).Create(ctx, burst, metav1.CreateOptions{})
	return err
}

func (g *guarded) insiderTries() map[string]attempt {
	by := g.insider
	const onlyUs = "only the controller of Spillway and Cluster API may"
	register := func(node *corev1.Node) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := by.kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
			return err
		}
	}
	disguised := burstNode("ordinary")
	return map[string]attempt{
		"deletes our Machine":                            {by.rest("DELETE", ofCAPI, ""), onlyUs},
		"takes the hook off our Machine":                 {by.rest("PATCH", ofCAPI, `{"metadata":{"annotations":null}}`), onlyUs},
		"deletes our SpillwayMachine":                    {by.rest("DELETE", ofOurs, ""), onlyUs},
		"moves the expiry stamp of our machine":          {by.rest("PATCH", ofOurs, `{"spec":{"expires":"2200-01-01T00:00:00Z"}}`), onlyUs},
		"tells us that a machine is gone":                {by.rest("PATCH", ofOurs+"/status", `{"status":{"state":"Deleted"}}`), onlyUs},
		"deletes all our SpillwayMachines":               {by.rest("DELETE", strings.TrimSuffix(ofOurs, "/"+machine), ""), onlyUs},
		"deletes a Burst":                                {by.rest("DELETE", bursts+"/train", ""), "bursts are written by"},
		"registers a burst node that nobody bought":      {register(burstNode(stranger)), "may not register the node " + stranger},
		"registers a burst node under an ordinary name":  {register(disguised), "its name must start with spw-"},
		"opens the burst node to everybody":              {by.rest("PATCH", "/api/v1/nodes/"+rented, `{"spec":{"taints":null}}`), "only Spillway's controller may take the taint"},
		"gives the burst node to another burst":          {by.rest("PATCH", "/api/v1/nodes/"+rented, `{"spec":{"taints":[{"key":"spillway.dev/burst","value":"other","effect":"NoSchedule"}]}}`), "only Spillway's controller may take the taint"},
		"binds a pod to the burst node":                  {by.bind(team, "plain", rented), "may not bind pod"},
		"creates a pod of its own with our toleration":   {by.create(newPod("x", tolerates(corev1.Toleration{Key: taintKey, Value: burstUID}))), "only the approver"},
		"cordons the burst node: may":                    {by.rest("PATCH", "/api/v1/nodes/"+rented, `{"metadata":{"labels":{"checked":"yes"}}}`), ""},
		"approves the request of a join token":           {func(ctx context.Context) error { return g.approve(ctx, by, "for-"+stranger) }, "approved by its controller only"},
		"creates a Machine of ours":                      {func(ctx context.Context) error { return g.writeMachine(ctx, by, system) }, onlyUs},
		"creates a Machine of somebody else's: may":      {func(ctx context.Context) error { return g.writeMachine(ctx, by, team) }, ""},
		"deletes the Machine of somebody else's: may":    {by.rest("DELETE", strings.Replace(ofCAPI, system+"/machines/"+machine, team+"/machines", 1), ""), ""},
		"registers an ordinary node: may":                {register(newNode("rack2")), ""},
		"removes the ordinary node: may":                 {by.rest("DELETE", "/api/v1/nodes/rack2", ""), ""},
		"creates a wildcard pod in a system namespace":   {by.create(newPod("daemon", func(p *corev1.Pod) { p.Namespace = "default" }, tolerates(corev1.Toleration{Operator: "Exists"}))), "has a toleration without a key"},
		"creates a wildcard pod in kube-system: may":     {by.create(newPod("daemon", func(p *corev1.Pod) { p.Namespace = "kube-system" }, tolerates(corev1.Toleration{Operator: "Exists"}))), ""},
		"gives a pod in kube-system our toleration":      {by.create(newPod("daemon2", func(p *corev1.Pod) { p.Namespace = "kube-system" }, tolerates(corev1.Toleration{Key: taintKey, Operator: "Exists"}))), "only the approver"},
		"presets the burst node for a kube-system pod":   {by.create(newPod("daemon3", func(p *corev1.Pod) { p.Namespace, p.Spec.NodeName = "kube-system", rented })), "names the burst node"},
		"changes the provider id of the burst node":      {by.rest("PATCH", "/api/v1/nodes/"+rented, `{"spec":{"providerID":"spillway://fake/eu-1/other"}}`), "field cannot be modified once set"},
		"creates a SpillwayMachine that nobody paid for": {func(ctx context.Context) error { return g.writeOurs(ctx, by) }, onlyUs},
	}
}

func (g *guarded) writeMachine(ctx context.Context, by actor, namespace string) error {
	object := newMachine("second")
	object.SetNamespace(namespace)
	_, err := by.resource(object).Create(ctx, object, metav1.CreateOptions{})
	return err
}

func (g *guarded) writeOurs(ctx context.Context, by actor) error {
	object := newSpillwayMachine("second")
	_, err := by.resource(object).Create(ctx, object, metav1.CreateOptions{})
	return err
}

func (g *guarded) approve(ctx context.Context, by actor, request string) error {
	csr, err := g.admin.kube.CertificatesV1().CertificateSigningRequests().Get(ctx, request, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("the request must be there: %w", err)
	}
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test",
	})
	_, err = by.kube.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, request, csr, metav1.UpdateOptions{})
	return err
}

func (g *guarded) approverTries() map[string]attempt {
	by := g.approver
	replace := func(path, value string) func(context.Context) error {
		return by.patch(team, "to-patch", fmt.Sprintf(`[{"op":"add","path":%q,"value":%s}]`, path, value))
	}
	const only = "the approver may change tolerations only"
	return map[string]attempt{
		"changes an image":                     {replace("/spec/containers/0/image", `"evil"`), only},
		"sets labels":                          {replace("/metadata/labels", `{"a":"b"}`), only},
		"sets annotations":                     {replace("/metadata/annotations", `{"a":"b"}`), only},
		"sets a finalizer":                     {replace("/metadata/finalizers", `["example.com/x"]`), only},
		"gives a pod an owner":                 {replace("/metadata/ownerReferences", `[{"apiVersion":"v1","kind":"Pod","name":"plain","uid":"u"}]`), only},
		"sets a deadline":                      {replace("/spec/activeDeadlineSeconds", "1"), only},
		"opens a scheduling gate":              {by.patch(team, "gated", `[{"op":"remove","path":"/spec/schedulingGates"}]`), only},
		"sends a gated pod to a node":          {by.patch(team, "gated", `[{"op":"add","path":"/spec/nodeSelector","value":{"kubernetes.io/hostname":"`+rented+`"}}]`), only},
		"tolerates another key":                {replace("/spec/tolerations/-", `{"key":"example.com/other","operator":"Exists"}`), "may add spillway.dev/burst=<burst uid> only"},
		"tolerates every burst":                {replace("/spec/tolerations/-", `{"key":"spillway.dev/burst","operator":"Exists"}`), "may add spillway.dev/burst=<burst uid> only"},
		"tolerates everything":                 {replace("/spec/tolerations/-", `{"operator":"Exists"}`), "ValidatingAdmissionPolicy 'spillway-"},
		"acts in kube-system":                  {by.patch("kube-system", "of-the-system", addOurs), "what runs there never bursts"},
		"binds a pod of kube-system":           {by.bind("kube-system", "of-the-system", rented), "what runs there never bursts"},
		"binds a pod to a node at home":        {by.bind(team, "plain", home), "may bind pods to burst nodes only"},
		"creates a pod":                        {by.create(newPod("x")), "cannot create resource"},
		"deletes a pod":                        {by.rest("DELETE", "/api/v1/namespaces/"+team+"/pods/plain", ""), "cannot delete resource"},
		"reads secrets":                        {by.rest("GET", "/api/v1/namespaces/"+team+"/secrets", ""), "cannot list resource"},
		"adds our toleration and an image too": {by.patch(team, "to-patch", strings.TrimSuffix(addOurs, "]")+`,{"op":"replace","path":"/spec/containers/0/image","value":"evil"}]`), only},
	}
}

func (g *guarded) controllerTries() map[string]attempt {
	by := g.controller
	impersonating := *by.config
	impersonating.Impersonate.UserName = "system:admin"
	impersonating.Impersonate.Groups = []string{"system:masters"}
	return map[string]attempt{
		"writes another Secret to kube-system": {by.rest("POST", "/api/v1/namespaces/kube-system/secrets", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"x"}}`), "may write join tokens in kube-system only"},
		"reads the Secrets of kube-system":     {by.rest("GET", "/api/v1/namespaces/kube-system/secrets", ""), "cannot list resource"},
		"reads the Secrets of a tenant":        {by.rest("GET", "/api/v1/namespaces/"+team+"/secrets/s3-keys", ""), "cannot get resource"},
		"creates a pod":                        {by.create(newPod("x")), "cannot create resource"},
		"adds our toleration as itself":        {by.patch(team, "plain", addOurs), "cannot patch resource"},
		"binds a pod as itself":                {by.bind(team, "plain", rented), "cannot create resource"},
		"speaks as an administrator": {func(ctx context.Context) error {
			return g.speak(ctx, by, "system:admin")
		}, "cannot impersonate"},
		"speaks as another account of ours": {func(ctx context.Context) error {
			return g.speak(ctx, by, "system:serviceaccount:"+system+":default")
		}, "cannot impersonate"},
		"creates and deletes a Burst: may": {func(ctx context.Context) error {
			burst := newBurst("short")
			burst.SetFinalizers(nil)
			if _, err := by.resource(burst).Create(ctx, burst, metav1.CreateOptions{}); err != nil {
				return err
			}
			return by.resource(burst).Delete(ctx, "short", metav1.DeleteOptions{})
		}, ""},
		"annotates the Machine: may":      {by.rest("PATCH", ofCAPI, `{"metadata":{"annotations":{"a":"b"}}}`), ""},
		"tells the owner its status: may": {by.rest("GET", "/apis/batch/v1/namespaces/"+team+"/jobs", ""), ""},
	}
}

// speak reads a pod under an impersonated name.
func (g *guarded) speak(ctx context.Context, by actor, as string) error {
	return by.kube.CoreV1().RESTClient().Get().AbsPath("/api/v1/namespaces/"+team+"/pods/plain").
		SetHeader("Impersonate-User", as).Do(ctx).Error()
}

func (g *guarded) viewerTries() map[string]attempt {
	by := g.viewer
	return map[string]attempt{
		"lists bursts: may": {by.rest("GET", bursts, ""), ""},
		"deletes a Burst":   {by.rest("DELETE", bursts+"/train", ""), "cannot delete resource"},
		"reads machines":    {by.rest("GET", ofOurs, ""), "cannot get resource"},
	}
}

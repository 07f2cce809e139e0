package stories

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/controller"
	"spillway.dev/spillway/autoscaler/inquiry"
	"spillway.dev/spillway/autoscaler/plan"
)

// TestPeopleAsk: somebody who may get one Job, and has no right on nodes, offers
// or anything of Spillway's, is told all about that Job by way of the API server,
// with any kind of kubeconfig; about any other they are told that they may not
// ask. The Job's own event and annotation say the same, once.
func TestPeopleAsk(t *testing.T) {
	address := reachable(t)
	s := newStage(t, func(c *controller.Config) { c.People = address })
	r := s.start("answers", nil)
	defer r.stop()
	s.door(address)
	s.submit("wide", 1, wants(8))
	s.submit("secret", 1, wants(8))
	s.grant("ada", rbacv1.PolicyRule{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, ResourceNames: []string{"wide"}, Verbs: []string{"get"}})

	ada, err := s.ControlPlane.UserConfig("ada", "scientists")
	if err != nil {
		t.Fatal(err)
	}
	robot, err := s.ControlPlane.ServiceAccountConfig(t.Context(), tenantNS, "ada")
	if err != nil {
		t.Fatal(err)
	}
	var answer plan.Answer
	defer func() { t.Logf("the last answer was %v", err) }()
	s.until(patience, "an answer with a decision", func() bool {
		answer, err = s.why(ada, "job", "wide")
		return err == nil && len(answer.Decisions) == 1 && answer.Decisions[0].Verdict == plan.Refuse
	})
	d := answer.Decisions[0]
	if d.Code != plan.GPUCountPerNode || len(d.Refusals) != 2 || !strings.Contains(d.Refusals[0].Message, "asks for 8 nvidia.com/gpu, one machine has 2") {
		t.Errorf("she is told:\n%s", answer.Explain())
	}
	byToken, err := s.why(robot, "job", "wide")
	if err != nil || byToken.Explain() != answer.Explain() {
		t.Errorf("a program with a token of its account is told %q, %v", byToken.Explain(), err)
	}
	t.Run("no right beside the Job", func(t *testing.T) { s.on(t).hasNoOtherRight(ada) })
	t.Run("turned away", func(t *testing.T) { s.on(t).turnsAway(t, ada) })
	t.Run("the Job says the same", func(t *testing.T) { s.on(t).saysTheSame(d) })
	t.Run("a quota is why", func(t *testing.T) { s.on(t).namesTheQuota() })
	t.Run("operators capture", func(t *testing.T) { s.on(t).captures(ada, "wide") })
}

func wants(gpus int64) func(*batchv1.Job) {
	return func(j *batchv1.Job) {
		for i := range j.Spec.Template.Spec.Containers {
			j.Spec.Template.Spec.Containers[i].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(gpus, resource.DecimalSI)}
			j.Spec.Template.Spec.Containers[i].Resources.Requests = nil
		}
	}
}

// reachable is a free address that is not loopback: an API server proxies to
// no other.
func reachable(t *testing.T) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		ip, ok := a.(*net.IPNet)
		if !ok || ip.IP.To4() == nil || !ip.IP.IsGlobalUnicast() {
			continue
		}
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(ip.IP.String(), "0"))
		if err != nil {
			continue
		}
		defer func() { _ = l.Close() }()
		return l.Addr().String()
	}
	t.Fatal("this machine has no IPv4 address but loopback, and an API server proxies to none of those: give it one")
	return ""
}

// door makes the Service lead to the controller as it would in a cluster: to a
// pod with that address.
func (s *stage) door(address string) {
	s.t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		s.t.Fatal(err)
	}
	number, err := net.LookupPort("tcp", port)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, system := s.t.Context(), v1alpha1.SystemNamespace
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "controller"}}
	pod.Spec.Containers = []corev1.Container{{Name: "controller", Image: "spillway"}}
	s.until(patience, "the namespace's default account", func() bool { return s.Client.Create(ctx, pod) == nil })
	pod.Status.PodIP, pod.Status.PodIPs = host, []corev1.PodIP{{IP: host}}
	if err := s.Client.Status().Update(ctx, pod); err != nil {
		s.t.Fatal(err)
	}
	name, number32, protocol, ready := "api", int32(number), corev1.ProtocolTCP, true
	err = s.Client.Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: system, Name: "controller", Labels: map[string]string{discoveryv1.LabelServiceName: inquiry.ServiceName}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &number32, Protocol: &protocol}},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{host}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: system, Name: pod.Name, UID: pod.UID},
		}},
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// grant gives a user and the service account of the same name rights in the
// tenant's namespace.
func (s *stage) grant(name string, rules ...rbacv1.PolicyRule) {
	s.t.Helper()
	meta := metav1.ObjectMeta{Namespace: tenantNS, Name: name}
	if err := s.Client.Create(s.t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: rules}); err != nil {
		s.t.Fatal(err)
	}
	err := s.Client.Create(s.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects: []rbacv1.Subject{
			{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}, {Kind: "ServiceAccount", Namespace: tenantNS, Name: name},
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) why(as *rest.Config, kind, name string) (plan.Answer, error) {
	s.t.Helper()
	client, err := inquiry.Dial(s.t.Context(), as, v1alpha1.SystemNamespace)
	if err != nil {
		return plan.Answer{}, err
	}
	return client.Why(s.t.Context(), kind, tenantNS, name)
}

// hasNoOtherRight: what she is told comes from no right of hers.
func (s *stage) hasNoOtherRight(as *rest.Config) {
	kube, err := kubernetes.NewForConfig(as)
	if err != nil {
		s.t.Fatal(err)
	}
	for what, ask := range map[string]func(context.Context) error{
		"nodes": func(ctx context.Context) error {
			_, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
			return err
		},
		"pods": func(ctx context.Context) error {
			_, err := kube.CoreV1().Pods(tenantNS).List(ctx, metav1.ListOptions{})
			return err
		},
		"offers": func(ctx context.Context) error {
			return kube.CoreV1().RESTClient().Get().AbsPath("/apis/spillway.dev/v1alpha1/burstproviders").Do(ctx).Error()
		},
		"other services of the namespace": func(ctx context.Context) error {
			return kube.CoreV1().RESTClient().Get().Namespace(v1alpha1.SystemNamespace).Resource("services").Name("https:spillway-api:443").SubResource("proxy").Do(ctx).Error()
		},
	} {
		if err := ask(s.t.Context()); err == nil || !strings.Contains(err.Error(), "forbidden") {
			s.t.Errorf("asked for %s she gets %v, want Forbidden", what, err)
		}
	}
}

func (s *stage) turnsAway(t *testing.T, ada *rest.Config) {
	stranger, err := s.ControlPlane.ServiceAccountConfig(s.t.Context(), "default", "stranger")
	if err != nil {
		s.t.Fatal(err)
	}
	elsewhere := rest.AnonymousClientConfig(stranger)
	elsewhere.BearerToken = s.tokenFor("registry.example.org")
	node, err := s.ControlPlane.NodeConfig("spw-rented")
	if err != nil {
		s.t.Fatal(err)
	}
	for what, tt := range map[string]struct {
		as     *rest.Config
		name   string
		status int // of the desk; 0: the API server does not even let them in
	}{
		"another's Job":                     {ada, "secret", http.StatusForbidden},
		"a Job that is not there":           {ada, "absent", http.StatusForbidden},
		"an account of another namespace":   {stranger, "wide", http.StatusForbidden},
		"a rented node":                     {node, "wide", http.StatusForbidden},
		"a token made for another audience": {elsewhere, "wide", 0},
		"nobody":                            {rest.AnonymousClientConfig(stranger), "wide", 0},
	} {
		t.Run(what, func(t *testing.T) {
			answer, err := s.on(t).why(tt.as, "job", tt.name)
			refused, ok := errors.AsType[*inquiry.RefusedError](err)
			if err == nil || ok != (tt.status != 0) || ok && refused.Status != tt.status {
				t.Errorf("told %q, %v; want status %d", answer.Explain(), err, tt.status)
			}
		})
	}
}

// tokenFor is a token of ada's account for another audience than the API server.
func (s *stage) tokenFor(audience string) string {
	s.t.Helper()
	token, err := s.Kube.CoreV1().ServiceAccounts(tenantNS).CreateToken(s.t.Context(), "ada", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}},
	}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return token.Status.Token
}

// saysTheSame: the Job's annotation and its one event carry the decision's text.
func (s *stage) saysTheSame(d plan.Decision) {
	text := "BurstRefused: " + d.Reason.String()
	s.until(patience, "the annotation on the Job", func() bool {
		job, err := s.Kube.BatchV1().Jobs(tenantNS).Get(s.t.Context(), "wide", metav1.GetOptions{})
		return err == nil && job.Annotations[v1alpha1.StatusAnnotation] == text
	})
	said := 0
	s.until(patience, "the event on the Job", func() bool {
		events, err := s.Kube.EventsV1().Events(tenantNS).List(s.t.Context(), metav1.ListOptions{})
		if err != nil {
			s.t.Fatal(err)
		}
		said = 0
		for _, e := range events.Items {
			if e.Regarding.Name == "wide" && e.Note == d.Reason.String() {
				said++
			}
		}
		return said > 0
	})
	if said != 1 {
		s.t.Errorf("%d events say it, want one", said)
	}
}

// namesTheQuota: of a Job whose pods the API server does not let in, its words
// are told.
func (s *stage) namesTheQuota() {
	full := corev1.ResourceList{"requests.nvidia.com/gpu": resource.MustParse("1")}
	meta := metav1.ObjectMeta{Namespace: tenantNS, Name: "gpus"}
	if err := s.Client.Create(s.t.Context(), &corev1.ResourceQuota{ObjectMeta: meta, Spec: corev1.ResourceQuotaSpec{Hard: full}}); err != nil {
		s.t.Fatal(err)
	}
	s.until(patience, "the quota's usage", func() bool {
		q, err := s.Kube.CoreV1().ResourceQuotas(tenantNS).Get(s.t.Context(), meta.Name, metav1.GetOptions{})
		used := q.Status.Used["requests.nvidia.com/gpu"]
		return err == nil && used.Value() == 16
	})
	s.submit("crowded", 1, wants(8))
	var told plan.Answer
	s.until(patience, "an answer about the quota", func() bool {
		var err error
		told, err = s.why(s.ControlPlane.AdminConfig, "job", "crowded")
		return err == nil && len(told.Decisions) == 1 && told.Decisions[0].Code == plan.NamespaceQuota
	})
	d := told.Decisions[0]
	if d.Verdict != plan.Wait || !strings.Contains(d.Message, "exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, used: requests.nvidia.com/gpu=16") {
		s.t.Errorf("told:\n%s", told.Explain())
	}
}

// captures: an operator gets the state, which decides the same; ada does not.
func (s *stage) captures(ada *rest.Config, job string) {
	ask := func(as *rest.Config) (json.RawMessage, error) {
		client, err := inquiry.Dial(s.t.Context(), as, v1alpha1.SystemNamespace)
		if err != nil {
			return nil, err
		}
		return client.State(s.t.Context())
	}
	if _, err := ask(ada); err == nil {
		s.t.Error("a tenant's user got the state of the whole cluster")
	}
	text, err := ask(s.ControlPlane.AdminConfig)
	if err != nil {
		s.t.Fatal(err)
	}
	var state plan.State
	if err := json.Unmarshal(text, &state); err != nil {
		s.t.Fatal(err)
	}
	again := plan.About(state, plan.Decide(state), plan.Subject{Kind: "Job", Namespace: tenantNS, Name: job})
	if len(again.Decisions) != 1 || again.Decisions[0].Code != plan.GPUCountPerNode {
		s.t.Errorf("the captured state decides:\n%s", again.Explain())
	}
	if strings.Contains(string(text), s.SecretOf("team-vision")) {
		s.t.Error("a secret was captured")
	}
}

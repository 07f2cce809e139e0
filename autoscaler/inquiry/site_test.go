package inquiry_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"spillway.dev/spillway/autoscaler/inquiry"
	"spillway.dev/spillway/autoscaler/plan"
)

// site is a controller's desk behind an API server that knows a few people by
// their tokens, and who proxies as the real one does: it takes the identity of
// the caller away, checks no certificate, and passes an upgrade on.
type site struct {
	t      *testing.T
	api    *httptest.Server
	desk   *inquiry.Server
	outer  *httptest.Server
	ca     authority
	mu     sync.Mutex
	tokens map[string]string // token to user
	rights map[string]bool   // "user verb resource.group namespace/name", name * for any
	asked  []string          // what access reviews asked, in order
	shown  int               // token reviews
	seen   []string          // headers and paths that went through the proxy
}

func newSite(t *testing.T, limits inquiry.Limits) *site {
	t.Helper()
	s := &site{t: t, ca: newAuthority(t), tokens: map[string]string{}, rights: map[string]bool{}}
	s.api = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.api.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.api.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	s.api.StartTLS()
	t.Cleanup(s.api.Close)
	kube, err := kubernetes.NewForConfig(s.config("controller"))
	if err != nil {
		t.Fatal(err)
	}
	if limits.Burst == 0 {
		limits.Burst = 10_000
	}
	if limits.Reviews == 0 {
		limits.Reviews = 10_000
	}
	s.desk = inquiry.New(inquiry.Config{
		Kube: kube, ClientCA: s.ca.pool(), Certificate: s.ca.issue(t, inquiry.ServiceName), Limits: limits, Log: slog.New(slog.DiscardHandler),
		Resources: []inquiry.Resource{
			{Kind: "Pod", Plural: "pods"},
			{Kind: "Job", Group: "batch", Plural: "jobs"},
			{Kind: "Job", Group: "batch.volcano.sh", Plural: "jobs"},
			{Kind: "Burst", Group: "spillway.dev", Plural: "bursts"},
		},
	})
	s.outer = httptest.NewUnstartedServer(s.desk)
	s.outer.Config = s.desk.Outer("", tls.Certificate{})
	s.outer.TLS = &tls.Config{Certificates: []tls.Certificate{s.ca.issue(t, inquiry.ServiceName)}}
	s.outer.StartTLS()
	t.Cleanup(s.outer.Close)
	t.Cleanup(func() { _ = s.desk.Close() })
	return s
}

// hang puts a pending Job train of the namespace vision on the board.
func (s *site) hang() *site {
	owner := plan.Owner{APIVersion: "batch/v1", Kind: "Job", Namespace: "vision", Name: "train", UID: "uid-train"}
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "vision", Name: "train-0", UID: "uid-train-0"}}
	pod.Spec.Containers = []corev1.Container{{Name: "main", Env: []corev1.EnvVar{{Name: "PASSWORD", Value: "hunter2"}}}}
	state := plan.State{Now: time.Date(2026, 11, 2, 10, 0, 0, 0, time.UTC), Gangs: []plan.Gang{{Owner: owner, Pods: []*corev1.Pod{&pod}}}}
	s.desk.Hang(state, plan.Plan{At: state.Now, Decisions: []plan.Decision{
		{Owner: owner, Verdict: plan.Wait, Reason: plan.Reason{Code: plan.LocalChance, Message: "as tested"}},
		{Owner: plan.Owner{APIVersion: "batch/v1", Kind: "Job", Namespace: "other", Name: "train", UID: "uid-other"}, Verdict: plan.Wait, Reason: plan.Reason{Message: "none of your business"}},
	}})
	return s
}

// person gives somebody a token, and rights as "verb resource.group namespace/name".
func (s *site) person(name, token string, rights ...string) *site {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens[token] = name
	for _, r := range rights {
		s.rights[name+" "+r] = true
	}
	return s
}

// config reaches the API server with a token, as a kubeconfig would.
func (s *site) config(token string) *rest.Config {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.api.Certificate().Raw})
	json := rest.ContentConfig{ContentType: "application/json"} // the reviews are read as such here
	return &rest.Config{Host: s.api.URL, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: ca}, QPS: -1, ContentConfig: json}
}

func (s *site) dial(c *rest.Config) *inquiry.Client {
	s.t.Helper()
	client, err := inquiry.Dial(s.t.Context(), c, "spillway-system")
	if err != nil {
		s.t.Fatal(err)
	}
	return client
}

// serve is the API server.
func (s *site) serve(w http.ResponseWriter, r *http.Request) {
	const services = "/api/v1/namespaces/spillway-system/services/"
	switch {
	case strings.HasSuffix(r.URL.Path, "/tokenreviews"):
		var review authenticationv1.TokenReview
		s.review(w, r, &review, func() { s.authenticate(&review) })
	case strings.HasSuffix(r.URL.Path, "/subjectaccessreviews"):
		var review authorizationv1.SubjectAccessReview
		s.review(w, r, &review, func() { s.authorize(&review) })
	case strings.HasSuffix(r.URL.Path, "/namespaces/spillway-system/configmaps/"+inquiry.ConfigMapName):
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(corev1.ConfigMap{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, Data: map[string]string{inquiry.AuthorityKey: string(s.ca.pem)},
		})
	case strings.HasPrefix(r.URL.Path, services+"https:spillway-api:api/proxy/"):
		s.proxy(w, r, strings.TrimPrefix(r.URL.Path, services+"https:spillway-api:api/proxy"))
	default:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound,
		})
	}
}

func (s *site) review(w http.ResponseWriter, r *http.Request, review any, decide func()) {
	if err := json.NewDecoder(r.Body).Decode(review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	decide()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(review)
}

func (s *site) authenticate(review *authenticationv1.TokenReview) {
	s.shown++
	user, known := s.tokens[review.Spec.Token]
	review.Status.Authenticated = known
	review.Status.User = authenticationv1.UserInfo{Username: user, Groups: []string{"system:authenticated"}}
}

func (s *site) authorize(review *authorizationv1.SubjectAccessReview) {
	a := review.Spec.ResourceAttributes
	resource := strings.TrimSuffix(a.Resource+"."+a.Group, ".")
	right := review.Spec.User + " " + a.Verb + " " + resource + " " + a.Namespace + "/"
	s.asked = append(s.asked, right+a.Name)
	review.Status.Allowed = s.rights[right+a.Name] || s.rights[right+"*"]
}

func (s *site) proxy(w http.ResponseWriter, r *http.Request, path string) {
	s.mu.Lock()
	s.seen = append(s.seen, path+" "+r.Header.Get("Authorization"))
	s.mu.Unlock()
	to, err := url.Parse(s.outer.URL)
	if err != nil {
		panic(err) // the server's own address
	}
	(&httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(to)
			p.Out.URL.Path = path
			p.Out.Header.Del("Authorization")
		},
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true},
		ErrorLog:  log.New(io.Discard, "", 0),
	}).ServeHTTP(w, r)
}

// authority issues certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a := authority{key: newKey(t)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// issue makes a certificate for a server of that name and a person of that name.
func (a authority) issue(t *testing.T, name string, groups ...string) tls.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name, Organization: groups}, DNSNames: []string{"spillway-api"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// shownAs is a kubeconfig with a client certificate instead of a token.
func (s *site) shownAs(by authority, name string, groups ...string) *rest.Config {
	s.t.Helper()
	cert := by.issue(s.t, name, groups...)
	der, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		s.t.Fatal(err)
	}
	c := s.config("")
	c.CertData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})
	c.KeyData = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	return c
}

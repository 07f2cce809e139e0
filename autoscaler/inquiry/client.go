package inquiry

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"spillway.dev/spillway/autoscaler/plan"
)

// Client asks the controller of a cluster, as the person whose kubeconfig it
// is. Errors are sentences for that person: the thing, the reason, the remedy.
type Client struct {
	inner *http.Client
}

// ErrNoController says that nobody answers in this cluster.
var ErrNoController = errors.New("no Spillway controller answers in this cluster")

// Dial prepares to ask the controller behind an API server. System is the
// namespace that Spillway lives in.
func Dial(ctx context.Context, config *rest.Config, system string) (*Client, error) {
	config = rest.CopyConfig(config)
	config.NextProtos = []string{"http/1.1"} // HTTP/2 knows no upgrades
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	published, err := kube.CoreV1().ConfigMaps(system).Get(ctx, ConfigMapName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return nil, fmt.Errorf("%w: ConfigMap %s/%s can't be read: %w; ask the platform team whether the controller runs, and whether its setting people is set", ErrNoController, system, ConfigMapName, err)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", config.Host, err)
	}
	authority := x509.NewCertPool()
	if !authority.AppendCertsFromPEM([]byte(published.Data[AuthorityKey])) {
		return nil, fmt.Errorf("ConfigMap %s/%s: no certificate in it: restart the controller, which writes it", system, ConfigMapName)
	}
	outer, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	door := kube.CoreV1().RESTClient().Get().Namespace(system).Resource("services").
		Name("https:" + ServiceName + ":" + portName).SubResource("proxy").Suffix(tunnelPath).URL().String()
	return dial(config, authority, func(ctx context.Context) (net.Conn, error) { return open(ctx, outer, door) })
}

// dial speaks TLS inside a tunnel and shows there who the config is.
func dial(config *rest.Config, authority *x509.CertPool, tunnel func(context.Context) (net.Conn, error)) (*Client, error) {
	secrets, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	inside := &tls.Config{RootCAs: authority, ServerName: ServiceName, MinVersion: tls.VersionTLS13}
	if secrets != nil { // the certificate that the API server is shown, if any
		inside.Certificates, inside.GetClientCertificate = secrets.Certificates, secrets.GetClientCertificate
	}
	transport := &http.Transport{
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			raw, err := tunnel(ctx)
			if err != nil {
				return nil, err
			}
			conn := tls.Client(raw, inside)
			if err := conn.HandshakeContext(ctx); err != nil {
				return nil, errors.Join(fmt.Errorf("the controller's certificate or its TLS: %w", err), raw.Close())
			}
			return conn, nil
		},
		DisableKeepAlives: true, DisableCompression: true,
	}
	shown, err := rest.HTTPWrappersForConfig(config, transport) // the token, whoever makes it
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return &Client{inner: &http.Client{Transport: shown, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}, nil
}

// Why asks what is known about an object.
func (c *Client) Why(ctx context.Context, kind, namespace, name string) (plan.Answer, error) {
	var answer plan.Answer
	return answer, c.ask(ctx, http.MethodGet, "why", url.Values{"kind": {kind}, "namespace": {namespace}, "name": {name}}, nil, &answer)
}

// Simulate asks what would become of a manifest.
func (c *Client) Simulate(ctx context.Context, namespace string, manifest []byte) (plan.Plan, error) {
	var answer plan.Plan
	return answer, c.ask(ctx, http.MethodPost, "simulate", url.Values{"namespace": {namespace}}, manifest, &answer)
}

// State asks for the newest state, without its secrets, as JSON.
func (c *Client) State(ctx context.Context) (json.RawMessage, error) {
	var answer json.RawMessage
	return answer, c.ask(ctx, http.MethodGet, "state", nil, nil, &answer)
}

// attempts is how often a tunnel is tried: of several controllers only the
// leader answers, and the API server takes any.
const attempts = 5

func (c *Client) ask(ctx context.Context, method, what string, query url.Values, body []byte, into any) error {
	for n := 1; ; n++ {
		err := c.once(ctx, method, what, query, body, into)
		closed, shut := errors.AsType[*closedError](err)
		switch {
		case !shut:
			return err
		case closed.status == http.StatusForbidden:
			return fmt.Errorf("%w; the chart's role spillway-api lets everybody in: ask the platform team to apply it", closed)
		case n == attempts || closed.status < http.StatusInternalServerError:
			return fmt.Errorf("%w: %w; ask the platform team whether it runs", ErrNoController, closed)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(n) * 200 * time.Millisecond):
		}
	}
}

func (c *Client) once(ctx context.Context, method, what string, query url.Values, body []byte, into any) error {
	target := url.URL{Scheme: "https", Host: ServiceName, Path: "/v1/" + what, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, target.String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := c.inner.Do(req)
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err // the URL is inside the tunnel and means nothing to anybody
		}
		return fmt.Errorf("ask the controller: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("the controller's answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		var said refusal
		if err := json.Unmarshal(answer, &said); err != nil || said.Error == "" {
			return fmt.Errorf("the controller answers %s", resp.Status)
		}
		return &RefusedError{Status: resp.StatusCode, Said: said.Error}
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("the controller's answer: %w; use the command of the controller's version", err)
	}
	return nil
}

// RefusedError is the controller's no, in its words, with the HTTP status.
type RefusedError struct {
	Status int
	Said   string
}

func (e *RefusedError) Error() string { return e.Said }

package controlplane

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const (
	// KubeletClient is the common name of the certificate by which the API
	// server shows itself to kubelets.
	KubeletClient = "kube-apiserver-kubelet-client"

	nodesGroup   = "system:nodes"
	mastersGroup = "system:masters"
	tokenLife    = 24 * time.Hour
	clientQPS    = 100
	clientBurst  = 200
)

// SignNode returns a client certificate and key (PEM) for the node identity
// system:node:NAME, as a joined kubelet has.
func (c *ControlPlane) SignNode(name string) (cert, key []byte, err error) {
	return c.ca.issue("system:node:"+name, []string{nodesGroup})
}

// NodeConfig is a client configuration for the node identity of that name.
func (c *ControlPlane) NodeConfig(name string) (*rest.Config, error) {
	return c.clientConfig("system:node:"+name, nodesGroup)
}

// UserConfig is a client configuration for a user with the given groups; what
// it may do is up to RBAC.
func (c *ControlPlane) UserConfig(name string, groups ...string) (*rest.Config, error) {
	return c.clientConfig(name, groups...)
}

// ServiceAccountConfig is a client configuration for a service account, with a
// token from the TokenRequest API that is good for a day. The namespace must
// exist; the account is made when it doesn't. It grants nothing.
func (c *ControlPlane) ServiceAccountConfig(ctx context.Context, namespace, name string) (*rest.Config, error) {
	client, err := kubernetes.NewForConfig(c.AdminConfig)
	if err != nil {
		return nil, fmt.Errorf("client for the API server: %w", err)
	}
	accounts := client.CoreV1().ServiceAccounts(namespace)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := accounts.Create(ctx, account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create service account %s/%s: %w", namespace, name, err)
	}
	seconds := int64(tokenLife.Seconds())
	token, err := accounts.CreateToken(ctx, name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("ask for a token of service account %s/%s: %w", namespace, name, err)
	}
	config := c.anonymous()
	config.BearerToken = token.Status.Token
	return config, nil
}

// WriteKubeconfig writes config as a kubeconfig file with embedded credentials.
func (c *ControlPlane) WriteKubeconfig(path string, config *rest.Config) error {
	const name = "spillway"
	out := clientcmdapi.NewConfig()
	out.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	out.AuthInfos[name] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData,
		ClientKeyData:         config.KeyData,
		Token:                 config.BearerToken,
	}
	out.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	out.CurrentContext = name
	if err := clientcmd.WriteToFile(*out, path); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

func (c *ControlPlane) anonymous() *rest.Config {
	return &rest.Config{
		Host:            c.URL,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.CACert},
		QPS:             clientQPS,
		Burst:           clientBurst,
	}
}

func (c *ControlPlane) clientConfig(name string, groups ...string) (*rest.Config, error) {
	cert, key, err := c.ca.issue(name, groups)
	if err != nil {
		return nil, err
	}
	config := c.anonymous()
	config.CertData, config.KeyData = cert, key
	return config, nil
}

// writeKubeconfigs writes the administrator's and the components' own.
func (c *ControlPlane) writeKubeconfigs() error {
	c.Kubeconfig = c.file("admin.kubeconfig")
	admin, err := c.clientConfig("admin", mastersGroup)
	if err != nil {
		return err
	}
	c.AdminConfig = admin
	if err := c.WriteKubeconfig(c.Kubeconfig, admin); err != nil {
		return err
	}
	for _, name := range []string{"kube-controller-manager", "kube-scheduler"} {
		config, err := c.clientConfig("system:" + name)
		if err != nil {
			return err
		}
		if err := c.WriteKubeconfig(c.file("pki", name+".kubeconfig"), config); err != nil {
			return err
		}
	}
	return nil
}

package bootstrap

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The parts of a bootstrap token, and where Kubernetes looks for it.
const (
	tokenNamespace = "kube-system"
	tokenPrefix    = "bootstrap-token-"
	tokenType      = corev1.SecretType("bootstrap.kubernetes.io/token")
	idLength       = 6
	secretLength   = 16
	alphabet       = "abcdefghijklmnopqrstuvwxyz0123456789"
)

// Group is the group of a node's join token, and of no other token.
func Group(node string) string { return "system:bootstrappers:spillway:" + node }

// TokenID is the public part of a node's join token. It depends on the node's
// name alone: making the token twice finds the first one.
func TokenID(node string) string {
	sum := sha256.Sum256([]byte("spillway join token\n" + node))
	id := make([]byte, idLength)
	for i := range id {
		id[i] = alphabet[int(sum[i])%len(alphabet)] // public: the bias harms nobody
	}
	return string(id)
}

// NewToken makes the join token of one node: a bootstrap-token Secret that ends
// at the join deadline. The random source must be a cryptographic one. The
// caller creates the Secret; when it exists already, the token is read from
// there with [TokenOf].
//
// A token whose lifetime is shorter than the join deadline locks slow machines
// out (cases: B-10 kubernetes-sigs/cluster-api#1433, #2770).
func NewToken(random io.Reader, node string, deadline time.Time) (*corev1.Secret, error) {
	if node == "" || deadline.IsZero() {
		return nil, errors.New("join token: node and deadline are needed")
	}
	secret, err := draw(random, secretLength)
	if err != nil {
		return nil, fmt.Errorf("join token of node %s: %w", node, err)
	}
	id := TokenID(node)
	return &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: tokenNamespace, Name: tokenPrefix + id,
			Labels: map[string]string{"spillway.dev/node": node},
		},
		Type: tokenType,
		StringData: map[string]string{
			"description":                    "joins " + node + " and nothing else",
			"token-id":                       id,
			"token-secret":                   secret,
			"expiration":                     deadline.UTC().Format(time.RFC3339),
			"usage-bootstrap-authentication": "true",
			"auth-extra-groups":              Group(node),
		},
	}, nil
}

// TokenOf reads the token from its Secret, fresh or as the API server has it,
// and refuses one of another node.
func TokenOf(s *corev1.Secret, node string) (string, error) {
	field := func(key string) string {
		if v, ok := s.StringData[key]; ok {
			return v
		}
		return string(s.Data[key])
	}
	if field("auth-extra-groups") != Group(node) {
		return "", fmt.Errorf("join token %s belongs to %q, not to node %s: delete the Secret if that node is gone", s.Name, field("auth-extra-groups"), node)
	}
	id, secret := field("token-id"), field("token-secret")
	if id == "" || secret == "" {
		return "", fmt.Errorf("join token %s is incomplete: delete the Secret", s.Name)
	}
	return id + "." + secret, nil
}

// draw returns n characters of the alphabet, each equally likely.
func draw(random io.Reader, n int) (string, error) {
	const fair = 256 - 256%len(alphabet) // above it, some characters would come more often
	var out strings.Builder
	buf := make([]byte, 1)
	for out.Len() < n {
		if _, err := io.ReadFull(random, buf); err != nil {
			return "", fmt.Errorf("read randomness: %w", err)
		}
		if b := int(buf[0]); b < fair {
			out.WriteByte(alphabet[b%len(alphabet)])
		}
	}
	return out.String(), nil
}

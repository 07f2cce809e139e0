package lifecycle

import (
	"bytes"
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/bootstrap"
	"spillway.dev/spillway/autoscaler/capi"
	"spillway.dev/spillway/nodeagent/link"
)

// NodeJoins is [Joins] over bootstrap tokens of the API server.
type NodeJoins struct {
	Client client.Client
	// Secret is what join tokens are derived from, so that a repetition makes
	// the same token and no right to read tokens is needed.
	Secret []byte
	// Site is what every machine is told: addresses, authorities, the store,
	// the key of the leases.
	Site link.Join
	// Drop deletes the user-data of a burst's machines.
	Drop func(ctx context.Context, burst types.UID) error
}

// UserData implements [Joins].
func (j *NodeJoins) UserData(ctx context.Context, b *v1alpha1.Burst, ordinal int32, first link.SignedLease, joinBy time.Time) ([]byte, error) {
	node := capi.NodeName(b.UID, ordinal)
	token, err := j.token(ctx, node, joinBy)
	if err != nil {
		return nil, err
	}
	offer := b.Spec.Offer
	data := j.Site
	data.BootstrapToken, data.NodeName = token, node
	data.ProviderID = capi.ProviderID(offer.Provider, offer.Region, b.UID, ordinal)
	data.Taints = bootstrap.Taints(string(b.UID), false)
	data.Labels = map[string]string{"spillway.dev/provider": offer.Provider}
	data.Burst, data.Tenant = string(b.UID), b.Spec.TenantID
	data.Lease = first
	data.GPUResource, data.GPUs = offer.GPUResource, int(offer.GPUs)
	return bootstrap.Render(data)
}

func (j *NodeJoins) token(ctx context.Context, node string, joinBy time.Time) (string, error) {
	secret, err := j.secret(node, joinBy)
	if err != nil {
		return "", err
	}
	if err := j.Client.Create(ctx, secret); err != nil && !apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("join token of node %s: %w", node, err)
	}
	return bootstrap.TokenOf(secret, node)
}

// secret is the token of a node, the same whenever it is asked for.
func (j *NodeJoins) secret(node string, joinBy time.Time) (*corev1.Secret, error) {
	const plenty = 512 // bytes of which 16 characters are drawn
	stream, err := hkdf.Key(sha256.New, j.Secret, nil, "spillway join token v1\n"+node, plenty)
	if err != nil {
		return nil, fmt.Errorf("join token of node %s: %w", node, err)
	}
	return bootstrap.NewToken(bytes.NewReader(stream), node, joinBy)
}

// Revoke implements [Joins].
func (j *NodeJoins) Revoke(ctx context.Context, b *v1alpha1.Burst) error {
	for ordinal := range b.Spec.Machines {
		node := capi.NodeName(b.UID, ordinal)
		secret, err := j.secret(node, time.Unix(1, 0))
		if err != nil {
			return err
		}
		if err := j.Client.Delete(ctx, secret); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("revoke the join token of node %s: %w", node, err)
		}
	}
	return j.Drop(ctx, b.UID)
}

package controller

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/datasync/seal"
	"spillway.dev/spillway/datasync/stager"
	"spillway.dev/spillway/datasync/transit"
)

// KeyService says where the key-encryption keys of bursts lie; the zero value
// is files in the data folder. Only a transit engine can prove that one is
// destroyed.
type KeyService struct {
	Transit *transit.Config // of a Vault or OpenBao
	Secrets bool            // Secrets of this cluster, in the system namespace
}

// Custody opens the custody of the bursts' data keys, beside a controller that
// runs or in its place. By and reason are who acts and why, for the audit
// record; the controller itself leaves them empty.
func Custody(c Config, by, reason string) (*stager.Custody, error) {
	dir := filepath.Join(c.DataDir, "datakeys")
	custody := stager.CustodyConfig{Dir: dir, Random: rand.Reader, Now: time.Now, By: by, Reason: reason}
	var err error
	switch {
	case c.KeyService.Transit != nil:
		custody.KEKs, err = transit.New(*c.KeyService.Transit)
	case c.KeyService.Secrets:
		var client kubernetes.Interface
		client, err = kubernetes.NewForConfig(c.REST)
		custody.KEKs = secretKEKs{client}
	default:
		custody.KEKs, err = stager.FileKEKs(dir, rand.Reader)
	}
	if err != nil {
		return nil, fmt.Errorf("key service: %w", err)
	}
	return stager.NewCustody(custody)
}

// secretKEKs is [stager.KEKs] in Secrets of the system namespace, one a key.
// The API server forgets a deleted Secret at once, etcd and its backups do not.
type secretKEKs struct{ client kubernetes.Interface }

const kekField = "kek"

func secretName(name string) string { return "spillway-kek-" + name }

// Make implements [stager.KEKs]: of several makers the API server lets one
// through.
func (s secretKEKs) Make(ctx context.Context, name string) error {
	kek, err := seal.NewKEK(rand.Reader)
	if err != nil {
		return err
	}
	defer kek.Destroy()
	fixed := true
	_, err = s.client.CoreV1().Secrets(v1alpha1.SystemNamespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: secretName(name)}, Immutable: &fixed, Data: map[string][]byte{kekField: kek[:]},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("make Secret %s/%s: %w", v1alpha1.SystemNamespace, secretName(name), err)
	}
	return nil
}

// Look implements [stager.KEKs].
func (s secretKEKs) Look(ctx context.Context, name string) (stager.KEK, error) {
	kek, err := s.read(ctx, name)
	kek.Destroy()
	return stager.KEK{
		ID: "secret/" + v1alpha1.SystemNamespace + "/" + secretName(name), Version: "1", Method: "Secret deleted",
		Doubts: []string{"etcd keeps what was deleted until it is compacted and its file defragmented"},
		Beyond: "backups and snapshots of etcd from before, and whoever may read Secrets of the system namespace",
	}, err
}

// Wrap implements [stager.KEKs].
func (s secretKEKs) Wrap(ctx context.Context, name string, key seal.DataKey) ([]byte, error) {
	kek, err := s.read(ctx, name)
	if err != nil {
		return nil, err
	}
	defer kek.Destroy()
	return seal.Wrap(kek, key, name, rand.Reader)
}

// Unwrap implements [stager.KEKs].
func (s secretKEKs) Unwrap(ctx context.Context, name string, wrapped []byte) (seal.DataKey, error) {
	kek, err := s.read(ctx, name)
	if err != nil {
		return seal.DataKey{}, err
	}
	defer kek.Destroy()
	return seal.Unwrap(kek, wrapped, name)
}

// Destroy implements [stager.KEKs].
func (s secretKEKs) Destroy(ctx context.Context, name string) (string, error) {
	err := s.client.CoreV1().Secrets(v1alpha1.SystemNamespace).Delete(ctx, secretName(name), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("delete Secret %s/%s: %w", v1alpha1.SystemNamespace, secretName(name), err)
	}
	return "", nil
}

func (s secretKEKs) read(ctx context.Context, name string) (seal.KEK, error) {
	secret, err := s.client.CoreV1().Secrets(v1alpha1.SystemNamespace).Get(ctx, secretName(name), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return seal.KEK{}, fmt.Errorf("%w: %w", stager.ErrNoKEK, err)
	}
	if err != nil {
		return seal.KEK{}, fmt.Errorf("read Secret %s/%s: %w", v1alpha1.SystemNamespace, secretName(name), err)
	}
	raw := secret.Data[kekField]
	defer clear(raw)
	if len(raw) != len(seal.KEK{}) {
		return seal.KEK{}, errors.New("the Secret " + v1alpha1.SystemNamespace + "/" + secretName(name) + " holds no key: restore it or destroy the burst's key")
	}
	return seal.KEK(raw), nil
}

// keepToken keeps the key service's token alive where it has one.
func (p *process) keepToken() error {
	if p.KeyService.Transit == nil {
		return nil
	}
	client, err := transit.New(*p.KeyService.Transit)
	if err != nil {
		return fmt.Errorf("key service: %w", err)
	}
	return p.mgr.Add(leaderFunc(func(ctx context.Context) error {
		client.KeepToken(ctx, p.Log)
		return nil
	}))
}

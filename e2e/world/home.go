package world

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/controller"
	"spillway.dev/spillway/e2e/objectstore"
	"spillway.dev/spillway/e2e/procnode"
	"spillway.dev/spillway/nodeagent/link"
)

// The accounts of the home store: the owner, the tenant's jobs, and the
// stager's own.
const (
	ownerKey  = "home-owner"
	TenantKey = "team-vision"
	StagerKey = "spillway-stager"
	cloudKey  = "staging-owner"
)

// SecretOf is the secret key of an account; the world is for tests and shows
// its secrets to nobody else.
func (w *World) SecretOf(account string) string { return w.secrets()[account] }

// secrets are drawn once and kept beside the world.
func (w *World) secrets() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.drawn == nil {
		w.drawn = map[string]string{}
		for _, account := range []string{ownerKey, TenantKey, StagerKey, cloudKey} {
			w.drawn[account] = rand.Text()
		}
	}
	return w.drawn
}

// Store is a running S3 store.
type Store interface {
	Addr() string // host:port
	URL() string
	// Policy lets accounts do everything in a bucket.
	Policy(bucket string, accounts ...string) string
	Stop() error
}

// Account is an account of a store.
type Account struct{ Key, Secret string }

// The names of the stores.
const (
	HomeStore    = "home"
	StagingStore = "staging"
)

// startStores starts the store at home and the one at the clouds.
func (w *World) startStores(ctx context.Context) (err error) {
	open := w.OpenStore
	if open == nil {
		open = w.openVersity
	}
	accounts := func(keys ...string) (list []Account) {
		for _, key := range keys {
			list = append(list, Account{Key: key, Secret: w.SecretOf(key)})
		}
		return list
	}
	if w.Home, err = open(ctx, HomeStore, w.Dir, accounts(ownerKey, TenantKey, StagerKey)); err != nil {
		return err
	}
	if w.Staging, err = open(ctx, StagingStore, w.Dir, accounts(cloudKey)); err != nil {
		return err
	}
	w.say("object store at home on %s (%s in the jobs), staging store at the clouds on %s", w.Home.Addr(), w.StoreAddress(), w.Staging.Addr())
	return nil
}

// openVersity runs versitygw on a folder.
func (w *World) openVersity(ctx context.Context, name, dir string, accounts []Account) (Store, error) {
	config := objectstore.Config{
		Dir: filepath.Join(dir, name+"-store"), Addr: "127.0.0.1:0", AccessKey: accounts[0].Key, SecretKey: accounts[0].Secret,
		AccessLog: filepath.Join(dir, name+"-access.log"), Exec: w.exec(StoreArg),
	}
	for _, a := range accounts[1:] {
		config.Users = append(config.Users, objectstore.User{AccessKey: a.Key, SecretKey: a.Secret})
	}
	s, err := objectstore.Start(ctx, config)
	if err != nil {
		return nil, err
	}
	return versity{s}, nil
}

type versity struct{ *objectstore.Store }

func (versity) Policy(bucket string, accounts ...string) string {
	return objectstore.Allow(bucket, accounts...)
}

// HomeLog is the access log of the home store.
func (w *World) HomeLog() string { return filepath.Join(w.Dir, HomeStore+"-access.log") }

// StagingDir holds the files of the staging store.
func (w *World) StagingDir() string { return filepath.Join(w.Dir, StagingStore+"-store") }

// StoreAddress is host:port of the home store as the jobs write it.
func (w *World) StoreAddress() string {
	_, port, _ := net.SplitHostPort(w.Home.Addr()) // the store's own address
	return net.JoinHostPort(StoreHost, port)
}

// S3 is a client of the home store as its owner.
func (w *World) S3() (*minio.Client, error) {
	c, err := minio.New(w.Home.Addr(), &minio.Options{
		Creds: credentials.NewStaticV4(ownerKey, w.SecretOf(ownerKey), ""), Region: "us-east-1",
	})
	if err != nil {
		return nil, fmt.Errorf("client of the home store: %w", err)
	}
	return c, nil
}

// MakeBucket makes a bucket at home that the tenant's jobs and the stager may
// use.
func (w *World) MakeBucket(ctx context.Context, bucket string) error {
	c, err := w.S3()
	if err != nil {
		return err
	}
	if err := c.MakeBucket(ctx, bucket, minio.MakeBucketOptions{}); err != nil {
		return fmt.Errorf("bucket %s: %w", bucket, err)
	}
	if err := c.SetBucketPolicy(ctx, bucket, w.Home.Policy(bucket, TenantKey, StagerKey)); err != nil {
		return fmt.Errorf("policy of bucket %s: %w", bucket, err)
	}
	return nil
}

// StoreSecret writes a Secret with the keys of an account.
func (w *World) StoreSecret(ctx context.Context, namespace, name, account string) error {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		StringData: map[string]string{"accessKey": account, "secretKey": w.SecretOf(account)},
	}
	if _, err := w.Kube.CoreV1().Secrets(namespace).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("secret %s/%s: %w", namespace, name, err)
	}
	return nil
}

// StagingAccount is the account of the staging store.
func StagingAccount() string { return cloudKey }

// startNodes boots the on-prem nodes, each with its agent.
func (w *World) startNodes(ctx context.Context) error {
	authority, err := controller.Authority(w.DataDir())
	if err != nil {
		return err
	}
	for i := range w.Nodes {
		name := fmt.Sprintf("onprem-%d", i+1)
		dir := filepath.Join(w.Dir, "nodes", name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("node %s: %w", name, err)
		}
		cert, key, err := w.ControlPlane.SignNode(name)
		if err != nil {
			return err
		}
		join, err := json.Marshal(link.Join{NodeName: name, Controller: w.Link, ControllerCA: authority})
		if err != nil {
			return fmt.Errorf("node %s: %w", name, err)
		}
		files := map[string][]byte{"client.crt": cert, "client.key": key, "ca.crt": w.ControlPlane.CACert, "join.json": join}
		for file, data := range files {
			if err := os.WriteFile(filepath.Join(dir, file), data, 0o600); err != nil {
				return fmt.Errorf("node %s: %w", name, err)
			}
		}
		m, err := procnode.Start(ctx, procnode.Config{
			Exec: w.exec(NodeArg), Dir: dir, Name: name, APIServer: w.ControlPlane.URL, CA: filepath.Join(dir, "ca.crt"),
			ClientCert: filepath.Join(dir, "client.crt"), ClientKey: filepath.Join(dir, "client.key"),
			Join: filepath.Join(dir, "join.json"), Agent: filepath.Join(w.BinDir, "spillway-agent"),
			GPUs: 2, StoreHost: w.StoreAddress(), StoreAddr: "127.0.0.1", Heartbeat: 5 * time.Second,
		})
		if err != nil {
			return err
		}
		w.nodes = append(w.nodes, m)
	}
	return w.waitNodes(ctx)
}

// waitNodes waits until all on-prem nodes offer their GPUs.
func (w *World) waitNodes(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		ready := 0
		nodes, err := w.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list nodes: %w", err)
		}
		for _, n := range nodes.Items {
			if gpus := n.Status.Allocatable["nvidia.com/gpu"]; gpus.Value() == 2 {
				ready++
			}
		}
		if ready == w.Nodes {
			w.say("%d on-prem nodes with 2 GPUs each are ready", ready)
			return nil
		}
		for _, m := range w.nodes {
			if err := m.Err(); err != nil {
				return fmt.Errorf("on-prem node: %w", err)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d on-prem nodes are ready after a minute; their consoles lie under %s", ready, w.Nodes, filepath.Join(w.Dir, "nodes"))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

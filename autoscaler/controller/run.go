package controller

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	controlplanev1 "spillway.dev/spillway/autoscaler/api/controlplane/v1alpha1"
	infrav1 "spillway.dev/spillway/autoscaler/api/infrastructure/v1alpha1"
	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/capi"
	"spillway.dev/spillway/autoscaler/infra"
	"spillway.dev/spillway/autoscaler/inquiry"
	"spillway.dev/spillway/autoscaler/lifecycle"
	"spillway.dev/spillway/autoscaler/observe"
	"spillway.dev/spillway/datasync/stager"
	"spillway.dev/spillway/nodeagent/link"
	"spillway.dev/spillway/quota/ledger"
)

// process is one controller process while it is put together.
type process struct {
	Config
	mgr      ctrl.Manager
	keys     *keyRing
	treasury *treasury
	drivers  *drivers
	hub      *link.Hub
	gate     *stager.Gate
	data     *lifecycle.Stager
	records  *lifecycle.FileRecords
	approver kubernetes.Interface
	kube     kubernetes.Interface
	meters   *meters
	table    observe.Table // of kinds of work
	watched  []observe.Watched
	captured time.Time       // when a state was last written down
	desk     *inquiry.Server // nil without an address for it
}

// Scheme registers every kind that the controller reads or writes.
func Scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme, capi.EmbeddedScheme} {
		if err := add(s); err != nil {
			return nil, fmt.Errorf("register kinds: %w", err)
		}
	}
	return s, nil
}

// Run runs a controller process until the context ends or its lead is lost.
// Errors say what is wrong with the configuration or the world.
func Run(ctx context.Context, c Config) error {
	if err := c.check(); err != nil {
		return err
	}
	if err := ready(ctx, c); err != nil {
		return err
	}
	c.oneClock()
	c.REST, c.EmbeddedCAPI = unthrottled(c.REST), unthrottled(c.EmbeddedCAPI)
	p := &process{Config: c}
	var err error
	if p.table, p.watched, err = kindsOfWork(ctx, c.REST); err != nil {
		return err
	}
	if p.meters, err = newMeters(metrics.Registry); err != nil {
		return err
	}
	if err := p.openData(ctx); err != nil {
		return err
	}
	defer func() { _ = p.treasury.ledger.Close() }() // every write is committed already
	if err := p.openCluster(); err != nil {
		return err
	}
	for _, add := range []func(context.Context) error{p.addServers, p.addPeople, p.addCAPI, p.addLife, p.addPlanning, p.addSweeper} {
		if err := add(ctx); err != nil {
			return err
		}
	}
	leading, end := context.WithCancelCause(ctx)
	defer end(nil)
	p.treasury.fenced = end
	err = p.mgr.Start(leading)
	if fence := context.Cause(leading); fence != nil && ctx.Err() == nil {
		return fmt.Errorf("controller: another leader has taken the ledger over: %w; start this process again", fence)
	}
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("controller: %w", err)
	}
	return nil
}

// unthrottled leaves it to the API server's priority and fairness how fast this
// process may go: the client's own limit, 5 requests a second, would make a
// lease wait behind events.
func unthrottled(c *rest.Config) *rest.Config {
	if c == nil {
		return nil
	}
	c = rest.CopyConfig(c)
	c.QPS = -1
	return c
}

// openData opens what outlives the process.
func (p *process) openData(ctx context.Context) error {
	if err := os.MkdirAll(p.DataDir, 0o700); err != nil {
		return fmt.Errorf("data folder: %w; choose a folder that this user may write", err)
	}
	var err error
	if p.keys, err = openKeys(filepath.Join(p.DataDir, "keys"), time.Now()); err != nil {
		return err
	}
	l, err := ledger.Open(ctx, cmp.Or(p.Ledger, filepath.Join(p.DataDir, "ledger.db")), ledger.Options{Now: time.Now})
	if err != nil {
		return err
	}
	p.treasury = &treasury{ledger: l, holder: p.Identity, log: p.Log}
	p.records = &lifecycle.FileRecords{
		Dir: filepath.Join(p.DataDir, "records"), Key: p.keys.certificate, SignedBy: "certificate", Operator: p.Life.Installation,
	}
	return nil
}

// openCluster makes the manager and the clients.
func (p *process) openCluster() error {
	scheme, err := Scheme()
	if err != nil {
		return err
	}
	home := cache.ByObject{Namespaces: map[string]cache.Config{v1alpha1.SystemNamespace: {}}}
	options := p.elected("spillway-controller")
	options.Scheme = scheme
	options.Client.Cache = &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}
	options.Cache.DefaultTransform = cache.TransformStripManagedFields()
	options.Cache.ByObject = map[client.Object]cache.ByObject{
		&clusterv1.Cluster{}: home, &clusterv1.Machine{}: home, &infrav1.SpillwayMachine{}: home, &controlplanev1.OnPremControlPlane{}: home,
	}
	options.Cache.ByObject[&corev1.Pod{}] = cache.ByObject{Transform: (&observe.LeanPods{}).Transform}
	for _, w := range p.watched {
		options.Cache.ByObject[w.Object()] = cache.ByObject{Transform: w.Lean}
	}
	options.Metrics = metricsserver.Options{BindAddress: p.Metrics}
	if p.mgr, err = ctrl.NewManager(p.REST, options); err != nil {
		return fmt.Errorf("reach the API server at %s: %w; check the kubeconfig", p.REST.Host, err)
	}
	if p.kube, err = kubernetes.NewForConfig(p.REST); err != nil {
		return fmt.Errorf("API client: %w", err)
	}
	as := rest.CopyConfig(p.REST)
	as.Impersonate = rest.ImpersonationConfig{
		UserName: fmt.Sprintf("system:serviceaccount:%s:%s", v1alpha1.SystemNamespace, v1alpha1.ApproverAccount),
	}
	if p.approver, err = kubernetes.NewForConfig(as); err != nil {
		return fmt.Errorf("API client of the approver: %w", err)
	}
	p.drivers = &drivers{reader: p.mgr.GetAPIReader(), dialers: p.Dialers, installation: p.Life.Installation, accounts: newAccounts(p.Log, p.meters)}
	return nil
}

// elected are the options of a manager that acts as leader only. It gives the
// lead back when it ends in order.
func (p *process) elected(id string) ctrl.Options {
	lease, renew, retry := p.LeaseDuration, p.LeaseDuration*2/3, p.LeaseDuration/5
	return ctrl.Options{
		Controller:     anyName(),
		LeaderElection: true, LeaderElectionID: id, LeaderElectionNamespace: v1alpha1.SystemNamespace, LeaderElectionReleaseOnCancel: true,
		LeaseDuration: &lease, RenewDeadline: &renew, RetryPeriod: &retry,
	}
}

// anyName lets a test run two controller processes in one.
func anyName() config.Controller {
	yes := true
	return config.Controller{SkipNameValidation: &yes}
}

// addServers makes link and gate, both behind the node's own certificate.
func (p *process) addServers(context.Context) error {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(p.ClusterCA) {
		return fmt.Errorf("cluster CA: no certificate in it")
	}
	belongs := nodeBurst(p.mgr.GetClient()) // from the cache: it is asked for every request of a node
	p.hub = link.NewHub(link.HubConfig{ClusterCA: pool, NodeBurst: belongs, Now: time.Now})
	p.gate = stager.NewGate(stager.GateConfig{
		Store: p.Store, Hosts: []string{hostOf(p.StoreAddress)}, NodeBurst: belongs, Now: time.Now, Patience: 30 * time.Second,
		Audit: func(a stager.Audit) {
			p.Log.Warn("gate refused a request", "node", a.Node, "burst", a.Burst, "method", a.Method, "bucket", a.Bucket, "key", a.Key, "reason", a.Reason)
		},
	})
	linkCert, err := p.keys.server(p.Link, time.Now())
	if err != nil {
		return err
	}
	gateCert, err := p.keys.server(p.Gate, time.Now())
	if err != nil {
		return err
	}
	gateTLS, err := stager.GateTLS(gateCert, p.ClusterCA)
	if err != nil {
		return err
	}
	for _, s := range []struct {
		name, address string
		handler       http.Handler
		tls           *tls.Config
	}{{"link", p.Link, p.hub, p.hub.TLSConfig(linkCert)}, {"gate", p.Gate, p.gate, gateTLS}} {
		server := &http.Server{Addr: s.address, Handler: s.handler, TLSConfig: s.tls, ReadHeaderTimeout: 10 * time.Second}
		if err := p.mgr.Add(&tlsServer{name: s.name, server: server, log: p.Log}); err != nil {
			return err
		}
	}
	return nil
}

// addCAPI adds the infrastructure controller and, when asked, Cluster API.
func (p *process) addCAPI(ctx context.Context) error {
	if err := p.embedCAPI(ctx); err != nil {
		return err
	}
	machines := &infra.Reconciler{
		Client: p.mgr.GetClient(), Reader: p.mgr.GetAPIReader(), Drivers: p.drivers.of, Permits: p.treasury,
		Timing: p.Infra, Now: time.Now, Hook: p.InfraHook, Log: p.Log,
	}
	if err := machines.SetupWithManager(p.mgr); err != nil {
		return err
	}
	join := &approver{client: p.mgr.GetClient(), reader: p.mgr.GetAPIReader(), certs: p.kube, settings: p.Life, now: time.Now, log: p.Log}
	if err := join.setup(p.mgr); err != nil {
		return err
	}
	cluster := p.cluster()
	return p.mgr.Add(leaderFunc(func(ctx context.Context) error {
		return capi.EnsureCluster(ctx, p.mgr.GetClient(), cluster)
	}))
}

// embedCAPI runs Cluster API's own reconcilers beside ours, with a manager and
// an identity of their own.
func (p *process) embedCAPI(ctx context.Context) error {
	if p.EmbeddedCAPI == nil {
		return nil
	}
	scheme, err := Scheme() // what a drained node may hold, too
	if err != nil {
		return err
	}
	options := capi.ManagerOptions(scheme, "")
	options.Metrics = metricsserver.Options{BindAddress: "0"}
	options.Controller = anyName()
	mgr, err := ctrl.NewManager(p.EmbeddedCAPI, options) // it runs at our leader only
	if err != nil {
		return fmt.Errorf("embed Cluster API: %w", err)
	}
	if err := capi.SetupEmbedded(ctx, mgr); err != nil {
		return err
	}
	return p.mgr.Add(mgr)
}

func (p *process) cluster() capi.Cluster {
	return capi.Cluster{
		Name: p.ClusterName, Namespace: v1alpha1.SystemNamespace, Endpoint: p.Endpoint, Kubeconfig: p.Kubeconfig,
	}
}

// stager makes the on-prem side of the data.
func (p *process) stager() (*lifecycle.Stager, error) {
	keys, err := Custody(p.Config, "", "")
	if err != nil {
		return nil, err
	}
	if err := p.keepToken(); err != nil {
		return nil, err
	}
	return &lifecycle.Stager{
		Client: p.mgr.GetAPIReader(), Keys: keys, Gate: p.gate, Records: p.records, Now: time.Now,
		Stager: stager.New(stager.Config{
			Keys: keys, Signer: p.keys.manifest, Random: rand.Reader, Now: time.Now, Log: p.Log,
			Caps: p.StagingCaps, Zone: p.StagingZone, Sent: p.meters.sent,
		}),
		Tool: "spillway", Version: p.Version,
	}, nil
}

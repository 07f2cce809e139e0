package lifecycle

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/capi"
	"spillway.dev/spillway/nodeagent/link"
	"spillway.dev/spillway/nodeagent/wipe"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

const (
	team     = "team"
	burstUID = types.UID("0123abcd-burst")
	gpu      = "nvidia.com/gpu"
)

// bench is one burst in the hands of a reconciler whose neighbours are kept in
// memory and fail on command. The API server is controller-runtime's fake.
type bench struct {
	t       testing.TB
	now     time.Time
	client  client.Client
	r       *Reconciler
	books   *books
	money   Ledger // books, unless a test has a real one
	yard    *yard
	joins   *joins
	vault   *vault
	agents  *agents
	work    *work
	records *FileRecords
	timers  []timer
	last    error // of the newest pass
}

// newBench makes a burst of so many machines for so many pods of one GPU each.
func newBench(t testing.TB, machines int32, pods int, change ...func(*v1alpha1.Burst)) *bench {
	t.Helper()
	b := &bench{t: t, now: time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC), records: newRecords(t)}
	burst := &v1alpha1.Burst{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: team, Name: "b", UID: burstUID, CreationTimestamp: metav1.NewTime(b.now), Finalizers: []string{v1alpha1.BurstFinalizer},
		},
		Spec: v1alpha1.BurstSpec{
			Tenant: team, TenantID: "t-1", Machines: machines, Ceiling: "100.00 EUR", Budgets: []string{"t-1/month"}, Mode: "safe",
			Gang: v1alpha1.GangReference{APIVersion: "batch/v1", Kind: "Job", Name: "train", UID: "job"},
			Offer: v1alpha1.OfferReference{
				Provider: "west", Region: "w1", InstanceType: "gpu", Country: "NL", GPUResource: gpu, GPUs: 1, PricePerHour: "3.60 EUR",
				Meter: v1alpha1.MeterRule{Start: "created", Granularity: metav1.Duration{Duration: time.Second}},
			},
			MaxRunTime: metav1.Duration{Duration: 2 * time.Hour},
			Deadline:   metav1.NewTime(b.now.Add(3 * time.Hour)), Until: metav1.NewTime(b.now.Add(4 * time.Hour)),
		},
	}
	objects := []client.Object{burst, &v1alpha1.BurstProvider{ObjectMeta: metav1.ObjectMeta{Name: "west"}}}
	for i := range pods {
		name := fmt.Sprintf("pod-%d", i)
		burst.Spec.Gang.Pods = append(burst.Spec.Gang.Pods, v1alpha1.PodReference{Name: name, UID: types.UID(name)})
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: name, UID: types.UID(name)}}
		pod.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{gpu: resource.MustParse("1")},
		}}}
		objects = append(objects, pod)
	}
	for _, f := range change {
		f(burst)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	b.client = fakeclient.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.Burst{}, &v1alpha1.BurstProvider{}, &corev1.Pod{}).Build()
	b.books, b.yard, b.joins, b.vault = &books{}, &yard{bench: b}, &joins{}, &vault{}
	b.money = b.books
	b.agents, b.work = &agents{bench: b, reports: map[string]report{}, told: map[string]link.Orders{}}, &work{bench: b}
	b.restart()
	return b
}

// restart is a new controller process: nothing is kept but the neighbours.
func (b *bench) restart() {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		b.t.Fatal(err)
	}
	settings := DefaultSettings()
	settings.Poll = 30 * time.Second
	b.r = &Reconciler{
		Client: b.client, Reader: b.client, Ledger: b.money, Machines: b.yard, Joins: b.joins, Data: b.vault, Nodes: b.agents,
		Records: b.records, Workload: b.work, LeaseKey: key, Settings: settings, Now: func() time.Time { return b.now }, Log: quiet(),
	}
}

// turn is one pass over the burst.
func (b *bench) turn() (ctrl.Result, error) {
	return b.r.Reconcile(b.t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: team, Name: "b"}})
}

// live makes passes, each after the time that the one before asked for, until
// the burst has recorded the fact. Errors are retried, as the queue does.
func (b *bench) live(fact string) {
	b.t.Helper()
	for deadline := b.now.Add(6 * time.Hour); b.now.Before(deadline); b.step() {
		if b.has(fact) {
			return
		}
	}
	b.t.Fatalf("6 hours went by without %s; facts %v, last error %v", fact, b.facts(), b.last)
}

func (b *bench) burst() *v1alpha1.Burst {
	b.t.Helper()
	burst := &v1alpha1.Burst{}
	if err := b.client.Get(b.t.Context(), types.NamespacedName{Namespace: team, Name: "b"}, burst); err != nil {
		b.t.Fatal(err)
	}
	return burst
}

func (b *bench) has(fact string) bool {
	return meta.FindStatusCondition(b.burst().Status.Conditions, fact) != nil
}

// fact is status, reason and message of a recorded fact in one line.
func (b *bench) fact(fact string) string {
	c := meta.FindStatusCondition(b.burst().Status.Conditions, fact)
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
}

func (b *bench) facts() (list []string) {
	for _, c := range b.burst().Status.Conditions {
		list = append(list, c.Type+"="+string(c.Status)+"/"+c.Reason)
	}
	return list
}

// pod changes one pod.
func (b *bench) pod(name string, change func(*corev1.Pod)) {
	b.t.Helper()
	pod := &corev1.Pod{}
	if err := b.client.Get(b.t.Context(), types.NamespacedName{Namespace: team, Name: name}, pod); err != nil {
		b.t.Fatal(err)
	}
	status := pod.DeepCopy()
	change(status)
	pod.Spec = status.Spec
	if err := b.client.Update(b.t.Context(), pod); err != nil {
		b.t.Fatal(err)
	}
	pod.Status = status.Status
	if err := b.client.Status().Update(b.t.Context(), pod); err != nil {
		b.t.Fatal(err)
	}
}

// place lets a pod run on one of the burst's nodes.
func (b *bench) place(name string, ordinal int32, phase corev1.PodPhase) {
	b.t.Helper()
	b.pod(name, func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Phase = capi.NodeName(burstUID, ordinal), phase })
}

// delete deletes the Burst, as kubectl does.
func (b *bench) delete() {
	b.t.Helper()
	if err := b.client.Delete(b.t.Context(), b.burst()); err != nil {
		b.t.Fatal(err)
	}
}

// books is a ledger that keeps one burst.
type books struct {
	reserved, settled bool
	settlement        quota.Settlement
	err               error // answers Reserve when set
}

func (l *books) Reserve(context.Context, quota.Reservation) (quota.Receipt, error) {
	if l.err != nil {
		return quota.Receipt{}, l.err
	}
	l.reserved = true
	return quota.Receipt{}, nil
}

func (l *books) Extend(context.Context, quota.Extension) (quota.Receipt, error) {
	return quota.Receipt{}, errors.New("this ledger knows no slices")
}

func (l *books) Settle(_ context.Context, s quota.Settlement) (quota.Receipt, error) {
	if !l.reserved {
		return quota.Receipt{}, quota.ErrUnknownBurst
	}
	l.settled, l.settlement = true, s
	return quota.Receipt{}, nil
}

func (l *books) Account(context.Context, string) (quota.Account, error) {
	if !l.reserved {
		return quota.Account{}, quota.ErrUnknownBurst
	}
	a := quota.Account{State: quota.Reserved, Settlement: l.settlement, Spent: l.settlement.Actual, Released: money.Amount{Currency: "EUR"}}
	if l.settled {
		a.State = quota.Settled
	}
	return a, nil
}

func (l *books) RecordUsage(context.Context, []quota.Usage) error { return nil }

// yard is Cluster API and the cloud: machines are bought, join and go within
// a tick each.
type yard struct {
	*bench
	views    []capi.View
	deleting bool
	released bool
	refusal  string // of every purchase, when set
	slow     bool   // machines are not bought
	absent   bool   // nodes never join
	ensure   map[int32]error
}

func (y *yard) Ensure(_ context.Context, o capi.Order) error {
	if err := y.ensure[o.Ordinal]; err != nil {
		return err
	}
	for _, v := range y.views {
		if v.Ordinal == o.Ordinal {
			return nil
		}
	}
	name := capi.NodeName(o.Burst.UID, o.Ordinal)
	y.views = append(y.views, capi.View{Name: name, Ordinal: o.Ordinal, ProviderID: "spillway://" + name, Stamped: o.Expires})
	return nil
}

func (y *yard) Read(context.Context, types.UID) ([]capi.View, error) {
	return slices.Clone(y.views), nil
}

func (y *yard) Stamp(_ context.Context, _ types.UID, until time.Time) error {
	for i := range y.views {
		y.views[i].Stamped = until
	}
	return nil
}

func (y *yard) Delete(context.Context, types.UID) ([]capi.View, error) {
	y.deleting = true
	return slices.Clone(y.views), nil
}

func (y *yard) Release(context.Context, types.UID, ...string) error {
	y.released = true
	return nil
}

func (y *yard) Forget(context.Context, types.UID) error { return nil }

// tick moves every machine one step on.
func (y *yard) tick() {
	for i := range y.views {
		v := &y.views[i]
		switch {
		case !v.Gone.IsZero():
		case y.deleting && y.released:
			v.Gone = y.now
		case y.slow:
		case y.refusal != "":
			v.Refusal = y.refusal
		case !v.Bought:
			v.Bought, v.InstanceID, v.Created, v.Started = true, "i-"+v.Name, y.now, y.now
		case v.Node == "" && !y.absent:
			v.Node = v.Name
			y.register(v)
		}
	}
}

// register makes the Node of a machine, and its agent.
func (y *yard) register(v *capi.View) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: v.Name}}
	node.Spec.ProviderID = v.ProviderID
	node.Spec.Taints = []corev1.Taint{{Key: v1alpha1.BurstTaint, Value: string(burstUID), Effect: corev1.TaintEffectNoSchedule}}
	node.Status.Allocatable = corev1.ResourceList{gpu: *resource.NewQuantity(int64(y.burst().Spec.Offer.GPUs), resource.DecimalSI)}
	if err := y.client.Create(y.t.Context(), node); err != nil {
		y.t.Fatal(err)
	}
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		y.t.Fatal(err)
	}
	y.agents.reports[v.Name] = report{seen: y.now, key: private, Report: link.Report{
		Node: v.Name, Burst: string(burstUID), BootID: "boot-1", ProofKey: public,
		Readiness: link.Ready{Evidence: []link.Evidence{{Gate: "disk", OK: true}}},
	}}
}

type joins struct{ revoked int }

func (j *joins) UserData(context.Context, *v1alpha1.Burst, int32, link.SignedLease, time.Time) ([]byte, error) {
	return []byte("user-data"), nil
}

func (j *joins) Revoke(context.Context, *v1alpha1.Burst) error {
	j.revoked++
	return nil
}

// vault is the stager.
type vault struct {
	unstaged                             bool // staging never ends
	prepare, stage, release, hand, erase error
	collected                            int
	erased                               bool
	prepared                             int
}

func (v *vault) Prepare(context.Context, *v1alpha1.Burst, time.Time) error {
	v.prepared++
	return v.prepare
}

func (v *vault) Stage(context.Context, *v1alpha1.Burst) (Staging, error) {
	return Staging{Done: !v.unstaged, ManifestSHA256: "manifest"}, v.stage
}

func (v *vault) Release(context.Context, *v1alpha1.Burst, link.Report) (*link.SealedKey, *link.Stage, error) {
	return &link.SealedKey{}, &link.Stage{ManifestSHA256: "manifest"}, v.release
}

func (v *vault) Collect(context.Context, *v1alpha1.Burst, []link.Upload) (Returned, error) {
	v.collected++
	return Returned{}, v.hand
}

func (v *vault) Erase(context.Context, *v1alpha1.Burst) (Erased, error) {
	if v.erase == nil {
		v.erased = true
	}
	return Erased{}, v.erase
}

// report is what an agent says, and the key it proves its wipe with.
type report struct {
	link.Report
	seen time.Time
	key  ed25519.PrivateKey
}

// agents do as they are told, within a tick.
type agents struct {
	*bench
	reports map[string]report
	told    map[string]link.Orders
	silent  bool
	denies  bool // that they ever had the key
	empty   bool // their caches are never filled
	drains  bool // pods end a minute after the lease has asked them to
}

func (a *agents) Report(node string) (link.Report, time.Time, bool) {
	r, ok := a.reports[node]
	return r.Report, r.seen, ok
}

func (a *agents) Tell(node string, o link.Orders) { a.told[node] = o }

func (a *agents) Forget(node string) { delete(a.reports, node) }

func (a *agents) tick() {
	if a.silent {
		return
	}
	for name, r := range a.reports {
		o := a.told[name]
		r.seen = a.now
		r.Drained = a.drains && a.now.After(a.burst().Status.Lease.Soft.Add(time.Minute))
		if o.Key != nil {
			r.KeyHeld = true
		}
		if o.Stage != nil && !a.empty {
			r.Staged.ManifestSHA256 = o.Stage.ManifestSHA256
		}
		if o.Wipe != nil && r.Wipe == nil {
			a.wipe(&r, o.Wipe)
		}
		a.reports[name] = r
	}
}

// wipe makes a complete proof.
func (a *agents) wipe(r *report, o *link.WipeOrder) {
	p := wipe.Proof{Burst: r.Burst, Node: r.Node, OrderID: o.ID, At: a.now, KeyReceived: r.KeyHeld && !a.denies, KeyDestroyed: true, Canary: wipe.CanaryUnwrap{OpenedBefore: true}, Areas: []wipe.Area{{Path: "/", Empty: true}}}
	for _, name := range wipe.RequiredSteps() {
		p.Steps = append(p.Steps, wipe.Step{Name: name, OK: true})
	}
	signed, err := wipe.Sign(r.key, p)
	if err != nil {
		a.t.Fatal(err)
	}
	r.Wipe, r.KeyHeld = &signed, false
}

// work reaches the pods.
type work struct {
	*bench
	admitted []string
	bound    map[string]string
	admit    map[string]error // by pod
	bind     map[string]error // by pod
	told     []string         // events
	logs     error
	onAdmit  func(pod string)
}

func (w *work) Admit(_ context.Context, _ *v1alpha1.Burst, pod v1alpha1.PodReference) error {
	if err := w.admit[pod.Name]; err != nil {
		return err
	}
	if !slices.Contains(w.admitted, pod.Name) {
		w.admitted = append(w.admitted, pod.Name)
		if w.onAdmit != nil {
			w.onAdmit(pod.Name)
		}
	}
	return nil
}

func (w *work) Bind(_ context.Context, _ *v1alpha1.Burst, pod v1alpha1.PodReference, node string) error {
	if err := w.bind[pod.Name]; err != nil {
		return err
	}
	if w.bound == nil {
		w.bound = map[string]string{}
	}
	w.bound[pod.Name] = node
	w.pod(pod.Name, func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning })
	return nil
}

func (w *work) Logs(context.Context, string, string) ([]byte, error) { return []byte("log"), w.logs }

func (w *work) Tell(_ context.Context, b *v1alpha1.Burst) error {
	fact, text := story(b)
	w.told = append(w.told, fact+": "+text)
	return nil
}

func errDown() error { return errors.New("the neighbour is down") }

// serve lets the pods run as soon as they are admitted, for a minute.
func (b *bench) serve() {
	b.work.onAdmit = func(name string) {
		b.place(name, 0, corev1.PodRunning)
		b.later(time.Minute, func() { b.place(name, 0, corev1.PodSucceeded) })
	}
}

// later does something when so much time has gone by.
func (b *bench) later(d time.Duration, f func()) {
	b.timers = append(b.timers, timer{b.now.Add(d), f})
}

type timer struct {
	at time.Time
	do func()
}

// liveOn lives until the burst is over, or fails the test after so long.
func (b *bench) liveOn(atMost time.Duration) {
	b.t.Helper()
	for end := b.now.Add(atMost); b.now.Before(end) && !b.has(v1alpha1.Complete) && !b.has(v1alpha1.Failed); {
		b.step()
	}
	if !b.has(v1alpha1.Complete) && !b.has(v1alpha1.Failed) {
		b.t.Fatalf("the burst is not over after %s: %v, last error %v", atMost, b.facts(), b.last)
	}
}

// step is one pass and the time that it asks for. Errors are retried after a
// while, as the queue does.
func (b *bench) step() {
	b.t.Helper()
	var res ctrl.Result
	res, b.last = b.turn()
	pause := res.RequeueAfter
	if b.last != nil || pause == 0 {
		pause = 10 * time.Second
	}
	b.now = b.now.Add(pause)
	for i := 0; i < len(b.timers); i++ {
		if due := b.timers[i]; !due.at.After(b.now) {
			b.timers = slices.Delete(b.timers, i, i+1)
			due.do()
			i--
		}
	}
	b.yard.tick()
	b.agents.tick()
}

// full is the disk of the records without room; free has some again.
func (b *bench) full() {
	file := filepath.Join(b.records.Dir, "certificates")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		b.t.Fatal(err)
	}
	b.records.Dir = file // a file is no folder: nothing can be kept in it
}

func (b *bench) free() { b.records.Dir = strings.TrimSuffix(b.records.Dir, "/certificates") }

// reboot starts the node's machine again: another boot, no key in memory.
func (b *bench) reboot() {
	for name, r := range b.agents.reports {
		r.BootID, r.KeyHeld = "boot-2", false
		b.agents.reports[name] = r
	}
}

// off lets every machine power off by itself.
func (y *yard) off() {
	for i := range y.views {
		y.views[i].State = string(providers.StateStopped)
	}
}

// lose lets the cloud lose every machine.
func (y *yard) lose() {
	for i := range y.views {
		y.views[i].Gone, y.views[i].Refusal = y.now, "Vanished"
	}
}

package lifecycle

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/nodeagent/link"
	"spillway.dev/spillway/nodeagent/wipe"
)

// wipe has the nodes erase and prove it, then destroys the key at home, which
// makes every copy of the ciphertext worthless, wherever it is.
func (r *Reconciler) wipe() []act {
	touched := func(b record) bool { return b.has(v1alpha1.MachineRequested) && !b.has(v1alpha1.WipeUnproven) }
	keyed := func(b record) bool { return b.has(v1alpha1.Reserved) }
	return []act{
		{fact: v1alpha1.Wiped, do: r.wipeNodes, owed: true, due: touched},
		{fact: v1alpha1.KeyDestroyed, do: r.destroyKey, owed: true, due: keyed},
	}
}

// wipeOrder is what the nodes are told; it is the same after a restart.
func (b record) wipeOrder() *link.WipeOrder {
	reason, _ := b.why(v1alpha1.WorkDone)
	if b.ending() {
		reason, _ = b.why(v1alpha1.Ending)
	}
	return &link.WipeOrder{ID: b.uid(), Reason: reason}
}

// wiping reports whether the nodes are to wipe now.
func (b record) wiping() bool {
	home := b.has(v1alpha1.ResultsHome) || !b.letIn()
	return home && (b.has(v1alpha1.WorkDone) || b.ending())
}

func (r *Reconciler) wipeNodes(_ context.Context, b record) (outcome, error) {
	late := b.now.After(b.endedAt().Add(r.Settings.WipeDeadline))
	var missing, partial []string
	for i := range b.Status.Machines {
		m := &b.Status.Machines[i]
		if m.ProofKey == "" {
			continue // it never proved itself, so no key was ever released to it
		}
		level, err := r.proof(b, m)
		switch {
		case err != nil:
			missing = append(missing, fmt.Sprintf("%s: %v", m.Name, err))
		case level != wipe.Complete:
			partial = append(partial, fmt.Sprintf("%s: %s", m.Name, level))
		}
	}
	switch {
	case len(missing) > 0 && !late:
		return outcome{wait: r.Settings.Poll}, nil
	case len(missing)+len(partial) > 0:
		return outcome{instead: v1alpha1.WipeUnproven, reason: "NoCompleteProof", message: strings.Join(append(missing, partial...), "; ") + r.toRotate(b)}, nil
	case !b.has(v1alpha1.KeyReleased):
		return outcome{reason: "NothingOnNodes", message: "no node ever held the data key"}, nil
	}
	return outcome{message: "every node signed a complete proof"}, nil
}

// proof verifies and keeps the newest proof of one machine.
func (r *Reconciler) proof(b record, m *v1alpha1.BurstMachine) (wipe.Level, error) {
	report, _, ok := r.Nodes.Report(m.Name)
	if !ok || report.Wipe == nil {
		return "", fmt.Errorf("no proof yet")
	}
	key, err := base64.StdEncoding.DecodeString(m.ProofKey)
	if err != nil {
		return "", fmt.Errorf("recorded proof key: %w", err)
	}
	p, err := wipe.Verify(key, *report.Wipe)
	if err != nil {
		return "", err
	}
	switch {
	case p.Burst != b.uid() || p.Node != m.Name:
		return "", fmt.Errorf("the proof is about burst %s on node %s", p.Burst, p.Node)
	case b.has(v1alpha1.KeyReleased) && !p.KeyReceived:
		// It reported that it held the key: what it says about a canary that was
		// never sealed shows nothing.
		return "", fmt.Errorf("the proof says that the node never had the data key, which it held")
	}
	data, err := json.Marshal(report.Wipe)
	if err != nil {
		return "", fmt.Errorf("keep proof: %w", err)
	}
	return p.Level(), r.Records.Keep(b.uid(), proofName(m.Name), data)
}

func proofName(node string) string { return "proof-" + node + ".json" }

const erasedName = "erased.json"

// eraseTry bounds one try to empty the staging store; the next one goes on
// where it stopped.
const eraseTry = time.Minute

// destroyKey holds up nothing when it fails: a staging store that is down, or a
// disk that is full, must not keep a machine, or money. Only the certificate
// waits for it.
func (r *Reconciler) destroyKey(ctx context.Context, b record) (outcome, error) {
	bounded, cancel := context.WithTimeout(ctx, eraseTry)
	defer cancel()
	e, err := r.erase(bounded, b)
	if err != nil {
		r.Log.Error("key and staging are not erased yet; it is tried again", "burst", b.Name, "namespace", b.Namespace, "error", err)
		return outcome{pass: r.Settings.patiently()}, nil
	}
	return outcome{status: metav1.ConditionTrue, message: fmt.Sprintf("%s; %d staged objects deleted", e.Key.DestroyMethod, e.Staging.ObjectsDeleted)}, nil
}

// erase erases and keeps what came of it.
func (r *Reconciler) erase(ctx context.Context, b record) (Erased, error) {
	e, err := r.Data.Erase(ctx, b.Burst)
	if err != nil {
		return e, err
	}
	data, err := json.Marshal(e)
	if err != nil {
		return e, fmt.Errorf("keep what was erased: %w", err)
	}
	if _, err := r.Records.Load(b.uid(), erasedName); !errors.Is(err, fs.ErrNotExist) {
		return e, err // a repetition finds less
	}
	return e, r.Records.Keep(b.uid(), erasedName, data)
}

// certificate gathers what is known; its level follows from the evidence.
func (r *Reconciler) certificate(b record) (wipe.Certificate, error) {
	c := wipe.Certificate{
		ID: "wipe-" + b.uid(), Burst: b.uid(), Tenant: b.Spec.TenantID, WorkloadUIDs: []string{string(b.Spec.Gang.UID)},
		Standard: wipe.Standard, Classification: b.Spec.Data.Class, IssuedAt: b.now.UTC().Truncate(time.Second),
	}
	data, err := r.Records.Load(b.uid(), erasedName)
	if err != nil {
		return c, fmt.Errorf("what was erased is not recorded: %w", err)
	}
	var e Erased
	if err := json.Unmarshal(data, &e); err != nil {
		return c, fmt.Errorf("read what was erased: %w", err)
	}
	c.Keys, c.Staging, c.Verification, c.NotCovered = []wipe.Key{e.Key}, e.Staging, e.Verification, e.NotCovered
	for i := range b.Status.Machines {
		m := &b.Status.Machines[i]
		if m.InstanceID == "" {
			continue // the cloud never had it
		}
		c.Media = append(c.Media, wipe.Media{Provider: b.Spec.Offer.Provider, ServerID: m.InstanceID, Type: "virtual disk"})
		c.NodeAcks = append(c.NodeAcks, r.ack(b, m))
		if m.Gone != nil && m.Gone.After(c.Provider.ServerDeletedAt) {
			c.Provider.ServerDeletedAt = m.Gone.UTC()
		}
	}
	c.Provider.Confirmations = []string{fmt.Sprintf("%s lists nothing with the burst's tokens", b.Spec.Offer.Provider)}
	return c, nil
}

func (r *Reconciler) ack(b record, m *v1alpha1.BurstMachine) wipe.NodeAck {
	a := wipe.NodeAck{Node: m.Name}
	data, err := r.Records.Load(b.uid(), proofName(m.Name))
	var signed wipe.SignedProof
	if err == nil {
		err = json.Unmarshal(data, &signed)
	}
	if err != nil {
		_, message := b.why(v1alpha1.WipeUnproven)
		a.Missing, a.Reason = true, "no proof: "+message
		if m.ProofKey == "" {
			a.Reason = "the node never proved itself; no key was released to it"
		}
		return a
	}
	a.Signed = &signed
	a.ProofKey, _ = base64.StdEncoding.DecodeString(m.ProofKey)
	return a
}

package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"spillway.dev/spillway/nodeagent/link"
	"spillway.dev/spillway/nodeagent/wipe"
)

func (a *Agent) isWiping() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.wiping
}

// takeWipe begins the wipe that the controller orders, once.
func (a *Agent) takeWipe(o link.WipeOrder) {
	a.mu.Lock()
	begun := a.wiping || a.session.Proof != nil
	a.wiping = true
	a.mu.Unlock()
	if begun {
		return
	}
	a.config.Log.Info("wipe ordered", "order", o.ID, "reason", o.Reason)
	a.wipes.Go(func() {
		ctx, done := context.WithTimeout(context.Background(), OffBy)
		defer done()
		if err := a.wipe(ctx, o.ID, "ordered: "+o.Reason, orderGrace); err != nil {
			a.trouble("the wipe is not complete", err)
		}
		a.client.Kick()
	})
}

// lockFront destroys the front's copy of the key, after nobody can give it
// the key again.
func (a *Agent) lockFront() error {
	ctx, done := context.WithTimeout(context.Background(), frontGrace)
	defer done()
	return errors.Join(a.staging.forbid(ctx), a.front.Lock())
}

// wipe wipes the node once and keeps the signed proof. A second call waits for
// the first and returns what it came to.
func (a *Agent) wipe(ctx context.Context, orderID, cause string, grace time.Duration) error {
	a.wipeOnce.Lock()
	defer a.wipeOnce.Unlock()
	a.mu.Lock()
	a.wiping = true
	a.nodeKey = nil
	proof, earlier, received := a.session.Proof, a.earlier, a.session.KeyReceived
	a.mu.Unlock()
	if proof != nil {
		return nil
	}
	noteErr := a.remember(func(s *session) { s.WipeBegun = true })
	w := wiper{
		node: a.config.Join.NodeName, burst: a.config.Join.Burst, area: a.area(), machine: a.config.Machine,
		vault: a.vault, canary: a.canary, earlier: earlier, received: received, lockFront: a.lockFront,
		wall: a.config.Wall, stopGrace: grace, look: lookAtPods,
	}
	if a.listener != nil {
		w.stopFront = a.listener.stop
	}
	p := w.run(ctx, orderID, cause)
	signed, err := wipe.Sign(a.proofKey, p)
	if err != nil {
		return errors.Join(noteErr, err)
	}
	a.config.Log.Info("the node is wiped", "level", p.Level(), "files", p.FilesRemoved, "bytes", p.BytesRemoved, "cause", cause)
	noteErr = errors.Join(noteErr, a.remember(func(s *session) {
		s.Proof, s.ProofKey = &signed, a.proofKey[32:]
		s.KeyDestroyed = s.KeyDestroyed || p.KeyDestroyed
	}))
	if noteErr != nil { // the disk refuses; the proof is reported all the same
		a.mu.Lock()
		a.session.Proof, a.session.ProofKey = &signed, a.proofKey[32:]
		a.mu.Unlock()
	}
	if level := p.Level(); level != wipe.Complete {
		return errors.Join(noteErr, fmt.Errorf("level %s: %v", level, p.Reasons()))
	}
	return noteErr
}

// Stop implements [Ender]: the soft end of the lease.
func (a *Agent) Stop(ctx context.Context, reason string) error {
	a.client.Kick()
	_, hard := a.keeper.Left()
	err := stopOnce(ctx, a.config.Machine, min(orderGrace, max(0, hard)), reason)
	if err != nil {
		a.config.Log.Warn("pods are being stopped", "reason", reason, "state", err.Error())
	}
	return err
}

// Wipe implements [Ender]: the hard end of the lease. When the controller can
// be reached it still gets the proof.
func (a *Agent) Wipe(ctx context.Context, reason string) error {
	a.config.Log.Error("the lease has ended: the node is wiped and powered off", "reason", reason)
	err := a.wipe(ctx, "", reason, 0)
	if err != nil {
		a.config.Log.Error("the wipe is not complete", "error", err.Error())
	}
	a.sayLastWord(ctx)
	return err
}

// sayLastWord waits a moment for one more reply: the report before it carried
// the proof.
func (a *Agent) sayLastWord(ctx context.Context) {
	a.mu.Lock()
	from := a.told
	a.mu.Unlock()
	a.client.Kick()
	for waited := time.Duration(0); waited < lastWord && ctx.Err() == nil; waited += lastWord / 30 {
		a.mu.Lock()
		told := a.told
		a.mu.Unlock()
		if told > from {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(lastWord / 30):
		}
	}
}

// PowerOff implements [Ender].
func (a *Agent) PowerOff(ctx context.Context, reason string) error {
	err := a.config.Machine.PowerOff(ctx, reason)
	if err != nil {
		a.config.Log.Error("the machine did not take the order to power off", "error", err.Error())
		return err
	}
	a.config.Log.Info("the machine is going off", "reason", reason)
	return nil
}

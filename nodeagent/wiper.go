package nodeagent

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"spillway.dev/spillway/datasync/seal"
	"spillway.dev/spillway/nodeagent/wipe"
)

// canary is a small sealed file in the area, sealed as the cache's files are.
// It opens with the data key; after the key is destroyed it must not.
type canary struct {
	path  string
	burst string
	sum   string // hex SHA-256 of the sealed bytes, "" before it was made
	plain []byte
}

func (c *canary) context() seal.Context {
	return seal.Context{Burst: c.burst, Direction: seal.Cache, Bucket: "spillway", Key: "canary"}
}

// make seals random bytes into the area.
func (c *canary) make(key seal.DataKey) error {
	plain := make([]byte, 64)
	if _, err := rand.Read(plain); err != nil {
		return fmt.Errorf("make the canary: %w", err)
	}
	var sealed bytes.Buffer
	w, err := seal.NewWriter(&sealed, key, c.context(), rand.Reader)
	if err == nil {
		_, err = w.Write(plain)
	}
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		err = os.MkdirAll(filepath.Dir(c.path), 0o700)
	}
	if err == nil {
		err = writeFile(c.path, sealed.Bytes())
	}
	if err != nil {
		return fmt.Errorf("make the canary: %w", err)
	}
	sum := sha256.Sum256(sealed.Bytes())
	c.plain, c.sum = plain, hex.EncodeToString(sum[:])
	return nil
}

// opens reads the canary from the disk and says whether it opens with key. An
// error means that nothing is known.
func (c *canary) opens(key seal.DataKey) (bool, error) {
	sealed, err := os.ReadFile(c.path)
	if err != nil {
		return false, fmt.Errorf("read the canary: %w", err)
	}
	if sum := sha256.Sum256(sealed); hex.EncodeToString(sum[:]) != c.sum {
		return false, errors.New("read the canary: it is not the file that was made")
	}
	plain, err := io.ReadAll(seal.NewOpener(bytes.NewReader(sealed), key, c.context()))
	switch {
	case errors.Is(err, seal.ErrWrongKey):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("open the canary: %w", err)
	}
	return bytes.Equal(plain, c.plain), nil
}

// notCovered is what no step of a node's wipe reaches. It is said in every
// proof.
func notCovered() []string {
	return []string{
		"GPU memory: this agent has no GPU library, the driver scrubs on free",
		"memory of processes that have ended, until the machine is off",
		"folders of the container runtime: their cipher's key is in memory only and goes with the machine",
		"blocks that a flash drive or the provider's storage keeps beside those of the files",
		"the agent's journal of usage: pod ids and times, no data",
	}
}

// wiper takes the steps of a node's wipe. A step that fails stops none of
// those behind it.
type wiper struct {
	node, burst string
	area        string // the folder with everything sealed
	machine     Machine
	vault       *vault
	canary      *canary
	received    bool // a key was in this node's memory, in this agent process or one before it
	earlier     bool // an agent process before this one held the key and did not overwrite it
	// lockFront destroys the front's copy of the key, stopFront ends its
	// service. Both may be nil when there was no front.
	lockFront func() error
	stopFront func(ctx context.Context) error
	wall      func() time.Time
	stopGrace time.Duration
	look      time.Duration // how often it is looked whether the pods have stopped
}

// run takes all steps, as far as they get until ctx ends, and states what
// happened. Destroying the key waits for the pods only, for a bounded time.
func (w *wiper) run(ctx context.Context, orderID, cause string) wipe.Proof {
	p := wipe.Proof{Burst: w.burst, Node: w.node, OrderID: orderID, Cause: cause, NotCovered: notCovered()}
	step := func(name string, err error, seen string) {
		s := wipe.Step{Name: name, OK: err == nil, Detail: seen, At: w.wall().UTC()}
		if err != nil {
			s.Detail = err.Error()
		}
		p.Steps = append(p.Steps, s)
	}

	stopping, stopped := context.WithTimeout(ctx, w.stopGrace+10*time.Second)
	err := w.stopPods(stopping)
	stopped()
	step(wipe.StepPodsStopped, err, "the machine lists no running pod")

	held, received := w.vault.has()
	p.KeyReceived = received || w.received || w.earlier
	controlErr := w.control(held, &p)
	err = w.destroyKey()
	p.KeyDestroyed = err == nil
	step(wipe.StepKeyZeroed, err, keySeen(received, p.KeyReceived))
	if w.earlier {
		step("earlier agent process", errors.New("it held the data key and ended without overwriting it"), "")
	}

	step(wipe.StepFrontStopped, w.endFront(ctx), "nothing listens")
	step(wipe.StepCanary, errors.Join(controlErr, w.refuses(&p)), canarySeen(p.KeyReceived))

	area, err := wipe.Erase(ctx, w.area)
	step(wipe.StepAreaErased, err, fmt.Sprintf("%d files, %d bytes", area.Files, area.Bytes))
	p.Areas = []wipe.Area{area}
	p.FilesRemoved, p.BytesRemoved = area.Files, area.Bytes
	p.At = w.wall().UTC()
	return p
}

func keySeen(here, ever bool) string {
	switch {
	case here:
		return "its memory was overwritten and read back as zeros"
	case ever:
		return "an agent process before this one received it, this one did not"
	}
	return "no key was ever received"
}

func canarySeen(received bool) string {
	if received {
		return "opened with the key before, does not open after"
	}
	return "no key was ever received, nothing was sealed"
}

// stopPods asks, waits, and asks again until no pod runs.
func (w *wiper) stopPods(ctx context.Context) error {
	for {
		err := stopOnce(ctx, w.machine, w.stopGrace, "the node is being wiped")
		for asked := time.Duration(0); err != nil && asked < stopAgain; asked += w.look {
			select {
			case <-ctx.Done():
				return err
			case <-time.After(w.look):
			}
			if n, lookErr := running(ctx, w.machine); n == 0 && lookErr == nil {
				return nil
			}
		}
		if err == nil {
			return nil
		}
	}
}

// stopOnce returns nil when no pod runs; if one does, or if that is not known,
// it asks for their end.
func stopOnce(ctx context.Context, m Machine, grace time.Duration, reason string) error {
	n, err := running(ctx, m)
	if err == nil && n == 0 {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("%d containers still run", n)
	}
	return errors.Join(err, m.StopPods(ctx, grace, reason))
}

// running counts the containers that have not ended.
func running(ctx context.Context, m Machine) (int, error) {
	pods, err := m.Pods(ctx)
	n := 0
	for _, p := range pods {
		if p.Finished.IsZero() {
			n++
		}
	}
	return n, err
}

// control is the positive test: while the key is there, the canary opens. Else
// its refusal afterwards would show nothing.
func (w *wiper) control(held bool, p *wipe.Proof) error {
	if !p.KeyReceived {
		return nil
	}
	p.Canary.SHA256 = w.canary.sum
	if !held {
		return errors.New("no key was held, so the canary could not be tried with it first")
	}
	key, err := w.vault.key()
	if err != nil {
		return err
	}
	defer key.Destroy()
	p.Canary.OpenedBefore, err = w.canary.opens(key)
	if err == nil && !p.Canary.OpenedBefore {
		err = errors.New("the canary did not open with the key")
	}
	return err
}

func (w *wiper) destroyKey() error {
	err := w.vault.destroy()
	if w.lockFront != nil {
		err = errors.Join(err, w.lockFront())
	}
	return err
}

func (w *wiper) endFront(ctx context.Context) error {
	if w.stopFront == nil {
		return nil
	}
	return w.stopFront(ctx)
}

// refuses is the negative test: what the vault holds now must not open the
// canary.
func (w *wiper) refuses(p *wipe.Proof) error {
	if !p.KeyReceived || !p.Canary.OpenedBefore {
		return nil
	}
	left, err := w.vault.key()
	if err == nil {
		p.Canary.OpenedAfter = true
		return errors.New("a key is still held")
	}
	p.Canary.OpenedAfter, err = w.canary.opens(left)
	if err == nil && p.Canary.OpenedAfter {
		err = errors.New("the canary still opens")
	}
	return err
}

package procnode

import (
	"sync"
	"syscall"
	"time"

	"spillway.dev/spillway/e2e/procnode/child"
)

// ending is the decision that a pod must end: why, and when at the latest. The
// first reason stays; later ones can only bring the end forward.
type ending struct {
	asked chan struct{} // closed with the first reason

	mu      sync.Mutex
	done    bool
	reason  string // of the pod's status; "" leaves it to the exit codes
	message string
	killAt  time.Time
	sooner  chan struct{} // closed and replaced when killAt moves
}

func newEnding() *ending {
	return &ending{asked: make(chan struct{}), sooner: make(chan struct{})}
}

// ask makes the pod end within grace.
func (e *ending) ask(reason, message string, grace time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := time.Now().Add(grace)
	if !e.done {
		e.done, e.reason, e.message, e.killAt = true, reason, message, at
		close(e.asked)
		return
	}
	if at.Before(e.killAt) {
		e.killAt = at
		close(e.sooner)
		e.sooner = make(chan struct{})
	}
}

// why returns the reason and message, and whether the end was asked for.
func (e *ending) why() (reason, message string, asked bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.reason, e.message, e.done
}

func (e *ending) limit() (killAt time.Time, sooner <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.killAt, e.sooner
}

// wait returns when p has ended: by itself, or by SIGTERM and at the latest by
// SIGKILL once the end was asked for.
func (e *ending) wait(p *child.Process) {
	select {
	case <-p.Done():
		return
	case <-e.asked:
	}
	if at, _ := e.limit(); time.Until(at) > 0 {
		p.Signal(syscall.SIGTERM)
	}
	for {
		at, sooner := e.limit()
		timer := time.NewTimer(time.Until(at))
		select {
		case <-timer.C:
			p.Kill()
			<-p.Done()
			return
		case <-sooner:
		case <-p.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// Package conformance holds the promises that every driver keeps, as one suite
// that runs against any cloud with a few levers.
//
// A [Promise] is one sentence of the contract in package providers; when it is
// broken, that sentence is the failure text. A driver's whole test is one call
// of [Run]. What a cloud can't be made to show is declared in [Suite.Lacks] with
// a reason, and shows up as a skipped test: nothing is left out in silence.
//
// Vocabulary: a [World] is one fresh account with its driver; a [Trouble] is
// what its cloud can be made to do; the audit is the account seen from outside,
// past the driver.
package conformance

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"spillway.dev/spillway/providers"
)

// Trouble is what a cloud can be made to do to the next call it concerns.
type Trouble string

// The troubles. Where not said otherwise they happen once.
const (
	CreateLost         Trouble = "the answer of the next create is lost"
	CreateErrorAfter   Trouble = "the next create is done and answered with a server error"
	CreateError        Trouble = "the next create is not done and answered with a server error"
	CreateSoldOut      Trouble = "the next create is refused: no stock"
	CreateLimit        Trouble = "the next create is refused: our limit"
	CreateInvalid      Trouble = "the next create is refused: invalid"
	CreateHalfMade     Trouble = "the next create is refused and leaves parts behind"
	CreateHalfStuck    Trouble = "the next create is refused, leaves parts behind, and their removal fails"
	CreateThrottled    Trouble = "the next create is throttled for 7 seconds"
	CreateHangs        Trouble = "the next create is not answered"
	SoldOutLater       Trouble = "the next machine is accepted and fails for lack of stock"
	BreaksLater        Trouble = "the next machine is accepted and fails for a reason nobody knows"
	NeverBoots         Trouble = "the next machine never boots"
	ListLags           Trouble = "the next machine stays out of lists for a while"
	ListBroken         Trouble = "the next list ends in the middle"
	DeleteSlow         Trouble = "the next delete takes a while"
	DeleteLost         Trouble = "the answer of the next delete is lost"
	DeleteGatewayError Trouble = "the next delete meets a proxy's 404 page"
	Unauthorized       Trouble = "the credential is refused, until the end"
)

// World is one fresh account of one cloud.
type World struct {
	Driver providers.Driver
	// Request returns a request that the cloud can serve, with this token and
	// the driver's own installation.
	Request func(token string) providers.Request
	// Make makes the cloud misbehave. It fails when the cloud can't.
	Make func(Trouble) error
	// Audit lists what costs money in the account, seen from outside: foreign
	// machines included, without those of which nothing is left.
	Audit func() []providers.Machine
	// Plant puts a machine into the account by another hand and returns its id.
	Plant func(providers.Machine) string
	// Pass lets a moment of the cloud's time go by, at most a second of ours.
	Pass func()
}

// Suite is a driver with its declared gaps.
type Suite struct {
	New func(testing.TB) World
	// Lacks names the promises that this cloud can't be made to show, each
	// with the reason and what covers it instead.
	Lacks map[string]string
}

// Promise is one sentence that every driver keeps.
type Promise struct {
	Name string // of the subtest
	Text string // the promise, as a sentence
	keep func(context.Context, World) error
}

// Keep tries the promise in a fresh world. Its error says how it was broken.
func (p Promise) Keep(ctx context.Context, w World) error {
	if err := p.keep(ctx, w); err != nil {
		return fmt.Errorf("broken promise: %s: %w", p.Text, err)
	}
	return nil
}

// patience ends a promise that hangs. It is long enough for a real cloud on a
// busy test machine.
const patience = 3 * time.Minute

// Run holds a driver against every promise, each in a world of its own.
func Run(t *testing.T, s Suite) {
	t.Helper()
	named := map[string]bool{}
	for _, p := range Promises() {
		named[p.Name] = true
		t.Run(p.Name, func(t *testing.T) {
			if why, lacks := s.Lacks[p.Name]; lacks {
				t.Skipf("declared gap: %s: %s", p.Text, why)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if err := p.Keep(ctx, s.New(t)); err != nil {
				t.Error(err)
			}
		})
	}
	for name := range s.Lacks {
		if !named[name] {
			t.Errorf("declared gap %q is no promise", name)
		}
	}
}

// Promises lists the contract.
func Promises() []Promise {
	var all []Promise
	for _, group := range [][]Promise{tokenPromises(), listPromises(), refusalPromises(), errorPromises(), deletePromises(), stampPromises()} {
		all = append(all, group...)
	}
	return all
}

// mustBe says what is wrong with an error that should have this kind: its
// type, its kind, or that there is none.
func mustBe(err error, kind providers.Kind) error {
	if err == nil {
		return fmt.Errorf("got no error, want %s", kind)
	}
	e, ok := errors.AsType[*providers.Error](err)
	if !ok {
		return fmt.Errorf("got %T, every error must be a *providers.Error: %w", err, err)
	}
	if e.Op == "" {
		return fmt.Errorf("error names no operation: %w", err)
	}
	if got := providers.KindOf(err); got != kind {
		return fmt.Errorf("got kind %q, want %q: %w", got, kind, err)
	}
	return nil
}

// listed returns what the driver lists under a token.
func listed(ctx context.Context, w World, token string) ([]providers.Machine, error) {
	all, err := w.Driver.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	return ofToken(all, token), nil
}

func ofToken(all []providers.Machine, token string) []providers.Machine {
	var mine []providers.Machine
	for _, m := range all {
		if m.Token == token {
			mine = append(mine, m)
		}
	}
	return mine
}

// auditIs checks how many machines of a token cost money.
func auditIs(w World, token string, want int) error {
	if got := ofToken(w.Audit(), token); len(got) != want {
		return fmt.Errorf("%d machines or leftovers of token %s are billed, want %d: %+v", len(got), token, want, got)
	}
	return nil
}

// moments is how often a world is given time before its patience ends.
const moments = 120

// until lets time pass until the condition holds.
func until(w World, what string, cond func() (bool, error)) error {
	for range moments {
		ok, err := cond()
		if err != nil || ok {
			return err
		}
		w.Pass()
	}
	return fmt.Errorf("it never came true: %s", what)
}

// buy creates one machine that must succeed, and waits until it is listed.
func buy(ctx context.Context, w World, token string) (providers.Machine, error) {
	m, err := w.Driver.Create(ctx, w.Request(token))
	if err != nil {
		return m, fmt.Errorf("create: %w", err)
	}
	return m, until(w, "the new machine is listed", func() (bool, error) {
		list, err := listed(ctx, w, token)
		return len(list) > 0, err
	})
}

// end deletes a machine until the driver lists nothing of its token.
func end(ctx context.Context, w World, m providers.Machine) error {
	if err := w.Driver.Delete(ctx, m.ID); err != nil && providers.KindOf(err) != providers.NotFound {
		return fmt.Errorf("delete: %w", err)
	}
	return until(w, "the deleted machine has left the list", func() (bool, error) {
		list, err := listed(ctx, w, m.Token)
		return len(list) == 0, err
	})
}

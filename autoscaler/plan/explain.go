package plan

import (
	"fmt"
	"strings"

	"spillway.dev/spillway/quota"
)

// Explain writes the plan for people: one line a decision, then one line for
// every refusal, in a stable order and wording. Unchanged text means that
// nothing has changed that a reader could act on.
// cases: H-15 volcano-sh/volcano#5249
func (p Plan) Explain() string {
	var b strings.Builder
	for _, d := range p.Decisions {
		b.WriteString(d.Explain())
	}
	return b.String()
}

// Explain writes one decision: "namespace/Kind/name: verdict: CODE: evidence;
// remedy", and below it one indented line a refusal.
func (d Decision) Explain() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s: %s", d.Owner, d.Verdict, d.Reason)
	if !d.Until.IsZero() {
		fmt.Fprintf(&b, " [until %s]", clock(d.Until))
	}
	b.WriteByte('\n')
	for _, f := range d.Refusals {
		fmt.Fprintf(&b, "  %s\n", f)
	}
	return b.String()
}

// String is "CODE: evidence; remedy".
func (r Reason) String() string {
	text := string(r.Code)
	if r.Message != "" {
		text += ": " + r.Message
	}
	if r.Remedy != "" {
		text += "; " + r.Remedy
	}
	return text
}

// String is the reason behind the offer that it is about.
func (f Refusal) String() string {
	if f.Offer == "" {
		return f.Reason.String()
	}
	return f.Offer + ": " + f.Reason.String()
}

// summary is what is bought, why, and what it can cost. It holds no time that
// moves with the clock: an observed purchase reads the same in every cycle.
func summary(bursts []Burst, misfit string) string {
	text := bursts[0].summary(misfit)
	for _, b := range bursts[1:] {
		text += fmt.Sprintf("; with it %d x %s for %s: %s in all, %s expected, at most %s", b.Machines, b.Offer.InstanceType, count(len(b.Pods), "pod"),
			b.Hourly, b.Expected, b.Ceiling)
	}
	return text
}

func (b Burst) summary(misfit string) string {
	pods := count(len(b.Pods), "pod")
	if b.Turns > 1 {
		pods += fmt.Sprintf(", up to %d one after the other", b.Turns)
	}
	text := fmt.Sprintf("%d x %s at %s in %s for %s: %s in all, %s expected, at most %s within %s; on-prem: %s",
		b.Machines, b.Offer.InstanceType, b.Offer.Provider, b.Offer.Region, pods,
		b.Hourly, b.Expected, b.Ceiling, short(b.Until.Sub(b.From)), misfit)
	if b.Mode == quota.ModeLease {
		text += "; reserved slice by slice"
	}
	text += b.Moving.String()
	if b.LocalAt.IsZero() {
		return text + "; nobody knows when on-prem will be free"
	}
	return text + fmt.Sprintf("; on-prem is expected free at %s, a burst is ready in %s", clock(b.LocalAt), short(b.ReadyAt.Sub(b.From)))
}

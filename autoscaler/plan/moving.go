package plan

import (
	"fmt"
	"time"

	"spillway.dev/spillway/quota/money"
)

// Moving is what it takes to bring the inputs of a burst to its provider.
type Moving struct {
	Bytes int64 `json:"bytes,omitempty"`
	// Takes is how long it takes at the provider's stated rate. It goes on while
	// machines boot, and they are billed while they wait for the rest of it.
	Takes time.Duration `json:"takes,omitempty"`
	// Cost is in what the burst is expected to cost.
	Cost money.Amount `json:"cost,omitzero"`
	// Unknown says why the others are not known, and so not reckoned with.
	Unknown string `json:"unknown,omitempty"`
}

func (m *Moving) String() string {
	switch {
	case m == nil:
		return ""
	case m.Unknown != "":
		return "; what it takes to move its inputs is not reckoned with: " + m.Unknown
	}
	text := fmt.Sprintf("; to move its inputs (%s) takes %s", inBytes(m.Bytes), short(m.Takes.Round(time.Second)))
	if m.Cost.Nano > 0 {
		text += fmt.Sprintf(" and is %s of it", m.Cost)
	}
	return text
}

// inBytes writes a size for people.
func inBytes(n int64) string {
	switch {
	case n >= gibi:
		return fmt.Sprintf("%d GiB", parts(n, gibi))
	case n >= mebi:
		return fmt.Sprintf("%d MiB", parts(n, mebi))
	}
	return fmt.Sprintf("%d bytes", n)
}

// parts is how many parts of a size make up n.
func parts(n, size int64) int64 { return n/size + min(n%size, 1) }

// moving is what it takes to bring the inputs of work to an offer's provider, or
// why it can't be bought there; nil for work without inputs.
func (r *run) moving(w *work, s *sale) (*Moving, *Reason) {
	switch {
	case len(w.Inputs) == 0:
		return nil, nil
	case w.InputBytes == nil:
		return &Moving{Unknown: "how much they are is not known"}, nil
	case s.provider == nil || s.provider.Spec.Transfer == nil:
		return &Moving{Bytes: *w.InputBytes, Unknown: "provider " + s.offer.Provider + " states no transfer"}, nil
	}
	t := s.provider.Spec.Transfer
	m := &Moving{Bytes: *w.InputBytes}
	size := parts(m.Bytes, mebi)
	m.Takes = Seconds(parts(size, int64(max(t.MiBPerSecond, 1))))
	if m.Takes > r.Settings.Staging {
		return nil, refusal(Reason{
			Code: DatasetTooLarge, Message: fmt.Sprintf("its inputs are %s, which takes %s at %d MiB/s, and staging is given %s", inBytes(m.Bytes), short(m.Takes), t.MiBPerSecond, short(r.Settings.Staging)),
			Remedy: "name fewer inputs, or use a provider with a faster line",
		})
	}
	if t.PricePerGiB == "" {
		return m, nil
	}
	price, err := money.Parse(string(t.PricePerGiB))
	if err == nil && price.Sign() < 0 {
		err = fmt.Errorf("a price is not negative: %s", price)
	}
	if err == nil {
		m.Cost, err = price.Mul(size)
		m.Cost.Nano = parts(m.Cost.Nano, gibi/mebi)
	}
	if err != nil {
		return nil, refusal(Reason{
			Code: PriceUnknown, Message: "what it costs to move its inputs can't be worked out: " + err.Error(), Remedy: "correct transfer.pricePerGiB of the provider",
		})
	}
	if m.Cost.Nano > 0 && m.Cost.Currency != s.offer.Price.Currency {
		return nil, refusal(Reason{
			Code: CurrencyMismatch, Message: fmt.Sprintf("its machines are priced in %s, and to move its inputs in %s", s.offer.Price.Currency, m.Cost.Currency),
			Remedy: "state transfer.pricePerGiB of the provider in the currency of its machines",
		})
	}
	return m, nil
}

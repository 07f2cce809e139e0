package plan

import "time"

// Settings are the times and limits that decisions use. A zero field takes its
// default from [Defaults], the one place where the defaults stand.
type Settings struct {
	// Debounce is how long a pod has to be unschedulable before it counts.
	Debounce time.Duration `json:"debounce"`
	// BurstAfter is the local chance of a tenant that states none.
	BurstAfter time.Duration `json:"burstAfter"`

	// Boot is the time from the decision to ready GPUs that is expected where
	// a provider states none. Ready is the deadline for the same.
	Boot  time.Duration `json:"boot"`
	Ready time.Duration `json:"ready"`

	// Staging and Buy bound what happens before a machine is there: sealing
	// the inputs, and the cloud's answer.
	Staging time.Duration `json:"staging"`
	Buy     time.Duration `json:"buy"`
	// Collect and Wipe bound what happens behind the deadline of a burst, both
	// counted from it: results verified at home, and the proof of the wipe.
	Collect time.Duration `json:"collect"`
	Wipe    time.Duration `json:"wipe"`

	// DeadMan, Sweep and Delete are what a machine can live on after that:
	// until it ends itself, until the sweeper looks, until the cloud has
	// deleted it.
	DeadMan time.Duration `json:"deadMan"`
	Sweep   time.Duration `json:"sweep"`
	Delete  time.Duration `json:"delete"`

	// Attempts is how many bursts may fail for one gang before it stops.
	Attempts int `json:"attempts"`
	// Backoff is the pause after a failed burst, doubled each time. A refusal
	// by the market is followed at once by the next offer.
	Backoff time.Duration `json:"backoff"`
	// Bench is how long an offer that the market refused is left alone by the
	// gang that was refused, doubled each time.
	Bench time.Duration `json:"bench"`
	// Machines bounds the machines of one burst.
	Machines int `json:"machines"`

	// ReserveMilliCPU and ReservePercent (of memory and disk) are what the
	// system on a burst node keeps for itself.
	ReserveMilliCPU int `json:"reserveMilliCPU"`
	ReservePercent  int `json:"reservePercent"`
}

// Defaults returns the settings of an installation that states none.
func Defaults() Settings {
	return Settings{
		Debounce:   30 * time.Second,
		BurstAfter: 5 * time.Minute,
		Boot:       10 * time.Minute,
		Ready:      25 * time.Minute,
		Staging:    10 * time.Minute,
		Buy:        5 * time.Minute,
		Collect:    15 * time.Minute,
		Wipe:       20 * time.Minute,
		DeadMan:    2 * time.Minute,
		Sweep:      time.Minute,
		Delete:     5 * time.Minute,
		Attempts:   5,
		Backoff:    time.Minute,
		Bench:      15 * time.Minute,
		Machines:   16,

		ReserveMilliCPU: 200,
		ReservePercent:  10,
	}
}

// withDefaults fills in what s leaves at zero, or below, which is no time.
func (s Settings) withDefaults() Settings {
	d := Defaults()
	for _, f := range []struct{ field, value *time.Duration }{
		{&s.Debounce, &d.Debounce},
		{&s.BurstAfter, &d.BurstAfter},
		{&s.Boot, &d.Boot},
		{&s.Ready, &d.Ready},
		{&s.Staging, &d.Staging},
		{&s.Buy, &d.Buy},
		{&s.Bench, &d.Bench},
		{&s.Collect, &d.Collect},
		{&s.Wipe, &d.Wipe},
		{&s.DeadMan, &d.DeadMan},
		{&s.Sweep, &d.Sweep},
		{&s.Delete, &d.Delete},
		{&s.Backoff, &d.Backoff},
	} {
		if *f.field <= 0 {
			*f.field = *f.value
		}
	}
	for _, f := range []struct{ field, value *int }{
		{&s.Attempts, &d.Attempts},
		{&s.Machines, &d.Machines},
		{&s.ReserveMilliCPU, &d.ReserveMilliCPU},
		{&s.ReservePercent, &d.ReservePercent},
	} {
		if *f.field <= 0 {
			*f.field = *f.value
		}
	}
	return s
}

package controller

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"spillway.dev/spillway/autoscaler/plan"
)

// meters are the process's own metrics. All names begin with spillway_, end in
// their unit or in total, and carry no name of a person, tenant or Job.
type meters struct {
	decisions *prometheus.CounterVec
	waiting   *prometheus.GaugeVec
	facts     *prometheus.CounterVec
	unowned   prometheus.Gauge
	staged    prometheus.Counter

	calls       *prometheus.CounterVec
	callSeconds *prometheus.HistogramVec
}

// newMeters registers the metrics; a second controller in one process shares
// those of the first.
func newMeters(r prometheus.Registerer) (*meters, error) {
	m := &meters{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "spillway_decisions_total", Help: "Outcomes of planning, by verdict and reason code; a gang counts in every cycle.",
		}, []string{"verdict", "code"}),
		waiting: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "spillway_gangs_pending", Help: "Gangs in the newest cycle, by verdict.",
		}, []string{"verdict"}),
		facts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "spillway_burst_facts_total", Help: "Facts recorded in the lives of bursts, by fact and reason.",
		}, []string{"fact", "reason"}),
		unowned: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "spillway_reservations_unowned", Help: "Open reservations whose Burst does not exist any more.",
		}),
		staged: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "spillway_staged_bytes_total", Help: "Ciphertext sent to staging stores, those of all bursts together.",
		}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "spillway_cloud_calls_total", Help: "Calls of clouds, by provider, operation and outcome: done, or the kind of failure.",
		}, []string{"provider", "op", "outcome"}),
		callSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "spillway_cloud_call_seconds", Help: "How long calls of clouds took, by provider and operation.",
			Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"provider", "op"}),
	}
	var err error
	m.decisions, err = registered(r, m.decisions)
	if err == nil {
		m.waiting, err = registered(r, m.waiting)
	}
	if err == nil {
		m.facts, err = registered(r, m.facts)
	}
	if err == nil {
		m.unowned, err = registered(r, m.unowned)
	}
	if err == nil {
		m.staged, err = registered(r, m.staged)
	}
	if err == nil {
		m.calls, err = registered(r, m.calls)
	}
	if err == nil {
		m.callSeconds, err = registered(r, m.callSeconds)
	}
	return m, err
}

// registered registers a collector, or returns the one that is there.
func registered[C prometheus.Collector](r prometheus.Registerer, c C) (C, error) {
	err := r.Register(c)
	if there, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if same, ok := there.ExistingCollector.(C); ok {
			return same, nil
		}
	}
	if err != nil {
		return c, fmt.Errorf("register metrics: %w", err)
	}
	return c, nil
}

func (m *meters) decided(p plan.Plan) {
	m.waiting.Reset()
	for _, d := range p.Decisions {
		m.decisions.WithLabelValues(string(d.Verdict), string(d.Code)).Inc()
		m.waiting.WithLabelValues(string(d.Verdict)).Inc()
	}
}

func (m *meters) sent(bytes int) { m.staged.Add(float64(bytes)) }

func (m *meters) noted(fact, reason string) { m.facts.WithLabelValues(fact, reason).Inc() }

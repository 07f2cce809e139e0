package openstack

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"

	"spillway.dev/spillway/providers"
)

//go:embed clouds.json
var cloudsJSON []byte

// cloud is what is known of a cloud beside what it says itself.
type cloud struct {
	meter providers.MeterRule
	gpus  map[string]GPU // by flavor
}

// cloudData is an entry of clouds.json: facts with their source and date.
type cloudData struct {
	Name   string         `json:"name"`
	Hosts  []string       `json:"hosts"` // ends of the identity service's host name
	Meter  *meterData     `json:"meter"`
	GPUs   map[string]GPU `json:"gpus"`
	Source string         `json:"source"`
	Date   string         `json:"date"` // when it was looked up
}

type meterData struct {
	Start             providers.MeterEvent `json:"start"`
	Granularity       string               `json:"granularity"`
	Minimum           string               `json:"minimum"`
	ClockAligned      bool                 `json:"clockAligned"`
	BilledWhenStopped bool                 `json:"billedWhenStopped"`
}

// dearest is the rule for a cloud that nobody has described: it overstates
// rather than understates.
func dearest() providers.MeterRule {
	return providers.MeterRule{
		Start: providers.MeterCreated, Stop: providers.MeterDeleted,
		Granularity: time.Hour, ClockAligned: true, BilledWhenStopped: true,
	}
}

// knownCloud finds a cloud by the host of its identity service.
func knownCloud(identity string) (cloud, error) {
	u, err := url.Parse(identity)
	if err != nil || u.Hostname() == "" {
		return cloud{}, fmt.Errorf("openstack: auth_url %q is no URL", identity)
	}
	all, err := readClouds()
	if err != nil {
		return cloud{}, err
	}
	for _, data := range all {
		for _, host := range data.Hosts {
			if name := strings.ToLower(u.Hostname()); name == host || strings.HasSuffix(name, "."+host) {
				return data.cloud()
			}
		}
	}
	return cloud{meter: dearest()}, nil
}

func readClouds() ([]cloudData, error) {
	var all []cloudData
	if err := json.Unmarshal(cloudsJSON, &all); err != nil {
		return nil, fmt.Errorf("openstack: clouds.json: %w", err)
	}
	return all, nil
}

func (c cloudData) cloud() (cloud, error) {
	known := cloud{meter: dearest(), gpus: c.GPUs}
	if c.Meter == nil {
		return known, nil
	}
	known.meter = providers.MeterRule{
		Start: c.Meter.Start, Stop: providers.MeterDeleted,
		ClockAligned: c.Meter.ClockAligned, BilledWhenStopped: c.Meter.BilledWhenStopped,
	}
	for text, into := range map[string]*time.Duration{c.Meter.Granularity: &known.meter.Granularity, c.Meter.Minimum: &known.meter.Minimum} {
		if text == "" {
			continue
		}
		length, err := time.ParseDuration(text)
		if err != nil {
			return cloud{}, fmt.Errorf("openstack: clouds.json: %s: %w", c.Name, err)
		}
		*into = length
	}
	return known, known.meter.Validate()
}

package ec2

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"time"

	"spillway.dev/spillway/providers"
)

//go:embed clouds.json
var cloudsJSON []byte

// cloudData is an entry of clouds.json: facts with their source and date.
type cloudData struct {
	Name    string            `json:"name"`
	Regions map[string]string `json:"regions"` // countries by region
	Meter   struct {
		Start       providers.MeterEvent `json:"start"`
		Granularity string               `json:"granularity"`
		Minimum     string               `json:"minimum"`
	} `json:"meter"`
	Source string `json:"source"`
	Date   string `json:"date"` // when it was looked up
}

// dearest is the rule for a region that nobody has described: it overstates
// rather than understates.
func dearest() providers.MeterRule {
	return providers.MeterRule{
		Start: providers.MeterCreated, Stop: providers.MeterDeleted,
		Granularity: time.Hour, ClockAligned: true, BilledWhenStopped: true,
	}
}

// meterOf finds how a region bills, and refuses settings that contradict what is
// known of it: a machine that stands in another country than its provider says
// would break the rules on data.
func meterOf(config Config) (providers.MeterRule, error) {
	all, err := readClouds()
	if err != nil {
		return providers.MeterRule{}, err
	}
	for _, cloud := range all {
		country, known := cloud.Regions[config.Region]
		switch {
		case !known:
			continue
		case country != config.Country:
			return providers.MeterRule{}, fmt.Errorf(
				"ec2: region %s of %s lies in %s, the provider says %q: correct its country", config.Region, cloud.Name, country, config.Country)
		}
		return cloud.meter()
	}
	if config.Endpoint == "" {
		return providers.MeterRule{}, fmt.Errorf(
			"ec2: region %q is none of AWS in Europe: correct it, or state the endpoint of the cloud that it is a region of", config.Region)
	}
	return dearest(), nil
}

func readClouds() ([]cloudData, error) {
	var all []cloudData
	if err := json.Unmarshal(cloudsJSON, &all); err != nil {
		return nil, fmt.Errorf("ec2: clouds.json: %w", err)
	}
	return all, nil
}

func (c cloudData) meter() (providers.MeterRule, error) {
	rule := providers.MeterRule{Start: c.Meter.Start, Stop: providers.MeterDeleted}
	var err error
	if rule.Granularity, err = time.ParseDuration(c.Meter.Granularity); err != nil {
		return rule, fmt.Errorf("ec2: clouds.json: %s: %w", c.Name, err)
	}
	if rule.Minimum, err = time.ParseDuration(c.Meter.Minimum); err != nil {
		return rule, fmt.Errorf("ec2: clouds.json: %s: %w", c.Name, err)
	}
	return rule, rule.Validate()
}

package main

import (
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"spillway.dev/spillway/datasync/stager"
)

func TestCapsAreReadFromTheConfiguration(t *testing.T) {
	for name, tt := range map[string]struct {
		text, wrong string
		want        stager.Cap
	}{
		"office hours":    {text: `{timeZone: Europe/Berlin, caps: [{from: "08:00", to: "18:30", bytesPerSecond: 50000000}]}`, want: stager.Cap{From: 8 * time.Hour, To: 18*time.Hour + 30*time.Minute, BytesPerSecond: 50_000_000}},
		"always, in UTC":  {text: `{caps: [{from: "00:00", to: "24:00", bytesPerSecond: 50000000}]}`, want: stager.Cap{To: 24 * time.Hour, BytesPerSecond: 50_000_000}},
		"no such zone":    {text: `{timeZone: Mars/Olympus}`, wrong: "timeZone"},
		"the host's zone": {text: `{timeZone: Local}`, wrong: "timeZone"},
		"no time":         {text: `{caps: [{from: "8 am", to: "18:00", bytesPerSecond: 50000000}]}`, wrong: `"8 am" is no time of day`},
		"no end":          {text: `{caps: [{from: "08:00", bytesPerSecond: 50000000}]}`, wrong: `"" is no time of day`},
		"no rate":         {text: `{caps: [{from: "08:00", to: "18:00"}]}`, wrong: "0 bytes per second"},
	} {
		t.Run(name, func(t *testing.T) {
			var s lineSettings
			if err := yaml.UnmarshalStrict([]byte(tt.text), &s); err != nil {
				t.Fatal(err)
			}
			caps, zone, err := s.caps()
			switch {
			case tt.wrong != "" && (err == nil || !strings.Contains(err.Error(), tt.wrong)):
				t.Errorf("%v, want an error about %q", err, tt.wrong)
			case tt.wrong == "" && (err != nil || len(caps) != 1 || caps[0] != tt.want || zone == nil):
				t.Errorf("%+v %v %v, want %+v", caps, zone, err, tt.want)
			}
		})
	}
}

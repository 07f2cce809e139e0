package main

import (
	"fmt"
	"time"

	"spillway.dev/spillway/datasync/stager"
)

// lineSettings say how much of the line out of the house staging may take.
type lineSettings struct {
	TimeZone string        `json:"timeZone"` // IANA name; UTC when empty
	Caps     []capSettings `json:"caps"`
}

type capSettings struct {
	From           string `json:"from"` // 08:00
	To             string `json:"to"`   // 18:00, or 24:00
	BytesPerSecond int64  `json:"bytesPerSecond"`
}

func (s lineSettings) caps() ([]stager.Cap, *time.Location, error) {
	zone, err := time.LoadLocation(s.TimeZone)
	if err != nil || s.TimeZone == "Local" { // would be another one on each host
		return nil, nil, fmt.Errorf("timeZone %q: give an IANA name such as Europe/Berlin", s.TimeZone)
	}
	var all []stager.Cap
	for _, c := range s.Caps {
		from, fromErr := timeOfDay(c.From)
		to, toErr := timeOfDay(c.To)
		one := stager.Cap{From: from, To: to, BytesPerSecond: c.BytesPerSecond}
		for _, err := range []error{fromErr, toErr, one.Check()} {
			if err != nil {
				return nil, nil, err
			}
		}
		all = append(all, one)
	}
	return all, zone, nil
}

// timeOfDay reads hours and minutes; 24:00 is the end of the day.
func timeOfDay(s string) (time.Duration, error) {
	if s == "24:00" {
		return 24 * time.Hour, nil
	}
	t, err := time.Parse("15:04", s)
	if err != nil {
		return 0, fmt.Errorf("%q is no time of day: write 08:00", s)
	}
	return time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute, nil
}

package controller

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/observe"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/quota/money"
)

// A provider's status says what its cloud told last, and whether it answers.
func TestMarketStatus(t *testing.T) {
	now := time.Date(2026, 11, 2, 10, 0, 0, 0, time.UTC)
	offers := []providers.Offer{
		{Provider: "seine", InstanceType: "g2", GPUModel: "L40S-48", GPUs: 2, GPUResource: "nvidia.com/gpu", Price: money.Rate{NanoPerHour: 2_900_000_000, Currency: "EUR"}},
		{Provider: "seine", InstanceType: "g1", GPUModel: "L4-24", GPUs: 1, GPUResource: "nvidia.com/gpu", SoldOut: true},
	}
	many := make([]providers.Offer, 10_000)
	for i := range many {
		many[i] = providers.Offer{Provider: "seine", InstanceType: fmt.Sprintf("g%05d", i)}
	}
	silence := errors.New("connection refused")
	denied := &providers.Error{Kind: providers.Unauthorized, Op: "offers", Err: errors.New("401")}
	tests := map[string]struct {
		told   observe.Told
		health string // status/reason
		offers int
	}{
		"nobody has asked yet": {observe.Told{}, "", 0},
		"it answers":           {observe.Told{Offers: offers, At: now}, "True/OffersTold", 2},
		"it answers with more than an object holds":   {observe.Told{Offers: many, At: now}, "True/OffersTold", 500},
		"it has not answered lately":                  {observe.Told{Offers: offers, At: now.Add(-5 * time.Minute), Problem: silence}, "Unknown/NoAnswer", 2},
		"it has not answered for long":                {observe.Told{Offers: offers, At: now.Add(-time.Hour), Problem: silence}, "False/NoAnswer", 2},
		"it never answered":                           {observe.Told{Problem: silence}, "False/NoAnswer", 0},
		"it refuses the credentials, from now on":     {observe.Told{Offers: offers, At: now.Add(-time.Minute), Problem: denied}, "False/Unauthorized", 2},
		"it refuses the credentials, and ever did so": {observe.Told{Problem: denied}, "False/Unauthorized", 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cloud := &v1alpha1.BurstProvider{}
			cloud.Name = "seine"
			market(cloud, tt.told, now, 10*time.Minute)
			health := ""
			if c := meta.FindStatusCondition(cloud.Status.Conditions, v1alpha1.ProviderHealthy); c != nil {
				health = string(c.Status) + "/" + c.Reason
			}
			if health != tt.health || len(cloud.Status.Offers) != tt.offers {
				t.Errorf("%s with %d offers, want %s with %d", health, len(cloud.Status.Offers), tt.health, tt.offers)
			}
			again := cloud.DeepCopy()
			told := tt.told
			if !told.At.IsZero() && told.Problem == nil {
				told.At = told.At.Add(time.Minute) // the same answer, a minute later
			}
			market(again, told, now.Add(time.Minute), 10*time.Minute)
			if again.ResourceVersion != cloud.ResourceVersion || !again.Status.OffersSeen.Equal(cloud.Status.OffersSeen) {
				t.Errorf("nothing new is written: %v, then %v", cloud.Status.OffersSeen, again.Status.OffersSeen)
			}
			back, err := observe.SeenOffers(cloud)
			if err != nil {
				t.Fatal(err)
			}
			if len(back) == 2 && (back[0].Key() != "seine///g1/" || !back[0].SoldOut || back[1].Price != offers[0].Price) {
				t.Errorf("read back: %+v", back)
			}
		})
	}
}

// A machine that is less than its offer let expect is an alarm at its provider.
func TestAsOffered(t *testing.T) {
	many := make([]string, 12)
	for i := range many {
		many[i] = fmt.Sprintf("g%02d has cpu 1m instead of 2m", i)
	}
	for _, tt := range []struct {
		learned     int
		differences []string
		want        string
	}{
		{0, nil, ""},
		{1, nil, "True/AsOffered: machines are what their offers let expect"},
		{1, many[:1], "False/Differs: g00 has cpu 1m instead of 2m; plans reckon with what they are, correct the offer's data"},
		{1, many, "False/Differs: " + strings.Join(many[:10], "; ") + "; and 2 other types; plans reckon with what they are, correct the offer's data"},
	} {
		cloud := &v1alpha1.BurstProvider{}
		cloud.Status.Learned = make([]v1alpha1.LearnedMachine, tt.learned)
		asOffered(cloud, tt.differences)
		got := ""
		if c := meta.FindStatusCondition(cloud.Status.Conditions, v1alpha1.ProviderAsOffered); c != nil {
			got = string(c.Status) + "/" + c.Reason + ": " + c.Message
		}
		if got != tt.want {
			t.Errorf("with %d differences: %q, want %q", len(tt.differences), got, tt.want)
		}
	}
}

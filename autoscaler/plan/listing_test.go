package plan_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/autoscaler/policy"
	"spillway.dev/spillway/providers"
)

func TestMarket(t *testing.T) {
	open := v1alpha1.DataRule{Class: "internal", Countries: []string{"DE", "US"}}
	site := site().rules(func(t *v1alpha1.BurstTenantSpec) { t.Burst.DataRules = append(t.Burst.DataRules, open) })
	tests := map[string]struct {
		given  given
		tenant string
		want   string
	}{
		"nobody sells anything": {site, "", ""},
		"what can be bought, for the classes that have a rule": {
			site.offer("cleura", 2, "2.50 EUR"), "",
			"cleura/one//gpu2/on-demand 2.50 EUR/h internal confidential; public: DATA_CLASS_FORBIDS_CLOUD, secret: DATA_CLASS_FORBIDS_CLOUD",
		},
		"a law that reaches it bars the class": {
			site.offer("hyper", 2, "1 EUR").american(), "",
			"hyper/one//gpu2/on-demand 1.00 EUR/h internal; public: DATA_CLASS_FORBIDS_CLOUD, confidential: JURISDICTION_LAW, secret: DATA_CLASS_FORBIDS_CLOUD",
		},
		"sold out is said, and where it could go anyway": {
			site.offer("cleura", 2, "2 EUR").soldOut(), "",
			"cleura/one//gpu2/on-demand 2.00 EUR/h (sold out) internal confidential; public: DATA_CLASS_FORBIDS_CLOUD, secret: DATA_CLASS_FORBIDS_CLOUD",
		},
		"refused lately, until when": {
			site.offer("cleura", 2, "2 EUR").seller(func(p *v1alpha1.BurstProvider, o *providers.Offer) {
				p.Status.Unavailable = []v1alpha1.UnavailableOffer{{Offer: o.Key(), Until: metav1.NewTime(now().Add(time.Hour)), Reason: "no valid host"}}
			}), "",
			"cleura/one//gpu2/on-demand 2.00 EUR/h (refused lately (no valid host), asked again from 2026-11-02 11:00:00Z) until 11:00 internal confidential; public: DATA_CLASS_FORBIDS_CLOUD, secret: DATA_CLASS_FORBIDS_CLOUD",
		},
		"a price that nobody knows": {
			site.offer("cleura", 2, ""), "",
			"cleura/one//gpu2/on-demand unknown ; public: DATA_CLASS_FORBIDS_CLOUD, internal: PRICE_UNKNOWN, confidential: PRICE_UNKNOWN, secret: DATA_CLASS_FORBIDS_CLOUD",
		},
		"a negotiated price counts": {
			site.offer("cleura", 2, "9 EUR").seller(func(p *v1alpha1.BurstProvider, _ *providers.Offer) {
				p.Spec.Prices = map[string]v1alpha1.Money{"gpu2": "7 EUR"}
			}), "",
			"cleura/one//gpu2/on-demand 7.00 EUR/h internal confidential; public: DATA_CLASS_FORBIDS_CLOUD, secret: DATA_CLASS_FORBIDS_CLOUD",
		},
		"for one tenant": {
			site.tenant("audio").offer("cleura", 2, "2 EUR"), "team-audio",
			"cleura/one//gpu2/on-demand 2.00 EUR/h confidential; public: DATA_CLASS_FORBIDS_CLOUD, internal: DATA_CLASS_FORBIDS_CLOUD, secret: DATA_CLASS_FORBIDS_CLOUD",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			list, err := plan.Market(tt.given.s, tt.tenant)
			if err != nil {
				t.Fatal(err)
			}
			if got := listed(list); got != tt.want {
				t.Errorf("Market() =\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
	t.Run("an unknown tenant is an error that names the known", func(t *testing.T) {
		if _, err := plan.Market(site.s, "team-x"); err == nil || !strings.Contains(err.Error(), "team-vision") {
			t.Errorf("Market() = %v", err)
		}
	})
}

func listed(list []plan.Listing) string {
	var lines []string
	for _, l := range list {
		text := fmt.Sprintf("%s %s", l.Key, l.Offer.Price)
		if l.Reason != nil {
			text += " (" + l.Reason.Message + ")"
		}
		if !l.Until.IsZero() {
			text += " until " + l.Until.UTC().Format("15:04")
		}
		var classes, barred []string
		for _, c := range policy.Classes() {
			if why, no := l.Barred[c]; no {
				barred = append(barred, fmt.Sprintf("%s: %s", c, why.Code))
			}
		}
		for _, c := range l.Classes {
			classes = append(classes, string(c))
		}
		lines = append(lines, text+" "+strings.Join(classes, " ")+"; "+strings.Join(barred, ", "))
	}
	return strings.Join(lines, "\n")
}

package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/policy"
	"spillway.dev/spillway/providers"
)

// Listing is one offer of the market, as a buyer sees it.
type Listing struct {
	// Offer at the price and the meter rule that count.
	Offer providers.Offer `json:"offer"`
	Key   string          `json:"key"`
	// Reason says why nobody can buy it now; nil: it can be bought. Until is
	// when that ends by itself; zero: it does not.
	Reason *Reason   `json:"reason,omitempty"`
	Until  time.Time `json:"until,omitzero"`
	// Classes are the data classes that may go there, from open to secret, for
	// at least one of the tenants that were asked about.
	Classes []policy.Class `json:"classes"`
	// Barred says for each other class what stands against it, in the words of
	// the first of those tenants.
	Barred map[policy.Class]Reason `json:"barred,omitempty"`
}

// listedRun is how long the work runs for which a market is listed: evidence
// has to hold for as long.
const listedRun = time.Hour

// Market lists what is sold, in the order of the offers' keys, for the tenants
// of the state, or for one of them. It is asked by people; decisions ask the
// same rules about the work at hand. An unknown tenant is an error.
func Market(s State, tenant string) ([]Listing, error) {
	s = sorted(s)
	s.Settings = s.Settings.withDefaults()
	tenants := s.Tenants
	if tenant != "" {
		tenants = slices.DeleteFunc(slices.Clone(tenants), func(t v1alpha1.BurstTenant) bool { return t.Name != tenant })
		if len(tenants) == 0 {
			return nil, fmt.Errorf("there is no tenant %s; there are: %s", tenant, strings.Join(tenantNames(s.Tenants), ", "))
		}
	}
	r := &run{State: s, providers: map[string]*v1alpha1.BurstProvider{}}
	for i := range s.Providers {
		r.providers[s.Providers[i].Name] = &s.Providers[i]
	}
	list := []Listing{}
	for _, sale := range sales(&s, r.providers) {
		l := Listing{Offer: sale.offer, Key: sale.key, Classes: []policy.Class{}, Barred: map[policy.Class]Reason{}}
		if blocks := sale.closed; len(blocks) > 0 {
			l.Reason, l.Until = &blocks[len(blocks)-1].Reason, blocks[len(blocks)-1].Until
		}
		for _, class := range policy.Classes() {
			r.bar(&l, sale, class, tenants)
		}
		list = append(list, l)
	}
	return list, nil
}

// bar asks for each tenant whether a class may go to an offer.
func (r *run) bar(l *Listing, s *sale, class policy.Class, tenants []v1alpha1.BurstTenant) {
	for _, t := range tenants {
		refused := policy.Going().Evaluate(policy.Trip{
			Tenant: t, Class: class, Offer: s.offer, Provider: s.provider, Now: r.Now,
			Until: r.timesFor(&work{maxRun: listedRun}, s, 1, nil).until,
		})
		if len(refused) == 0 {
			l.Classes = append(l.Classes, class)
			delete(l.Barred, class)
			return
		}
		if _, told := l.Barred[class]; !told {
			l.Barred[class] = reasonOf(refused[0])
		}
	}
}

func tenantNames(tenants []v1alpha1.BurstTenant) []string {
	names := make([]string, len(tenants))
	for i := range tenants {
		names[i] = tenants[i].Name
	}
	return names
}

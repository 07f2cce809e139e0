package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/observe"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/providers"
)

// addMarket writes into each BurstProvider what its cloud sells and whether it
// answers, for the people who connected it.
func (p *process) addMarket(offers *observe.OfferBook) error {
	return p.mgr.Add(leaderFunc(func(ctx context.Context) error {
		turn := time.NewTicker(p.OffersEvery)
		defer turn.Stop()
		for {
			if err := p.publishMarket(ctx, offers); err != nil && ctx.Err() == nil {
				p.Log.Warn("the state of a provider is not written; it is tried again", "error", err)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-turn.C:
			}
		}
	}))
}

func (p *process) publishMarket(ctx context.Context, offers *observe.OfferBook) error {
	clouds := &v1alpha1.BurstProviderList{}
	if err := p.mgr.GetClient().List(ctx, clouds); err != nil {
		return fmt.Errorf("list BurstProviders: %w", err)
	}
	offers.Offers(ctx, clouds.Items)
	for i := range clouds.Items {
		cloud := &clouds.Items[i]
		before := cloud.DeepCopy()
		told := offers.Told(cloud.Name)
		market(cloud, told, time.Now(), offers.Stale)
		asOffered(cloud, plan.Differences(cloud, told.Offers, p.Planning))
		if equality.Semantic.DeepEqual(before.Status, cloud.Status) {
			continue
		}
		// A patch of these fields alone: others of the status are written elsewhere.
		if err := p.mgr.GetClient().Status().Patch(ctx, cloud, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("BurstProvider %s: %w", cloud.Name, err)
		}
	}
	return nil
}

// asOffered says whether machines are what their offers let expect, once one has
// been seen as a node.
func asOffered(cloud *v1alpha1.BurstProvider, differences []string) {
	if len(cloud.Status.Learned) == 0 {
		return
	}
	c := metav1.Condition{
		Type: v1alpha1.ProviderAsOffered, ObservedGeneration: cloud.Generation,
		Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAsOffered, Message: "machines are what their offers let expect",
	}
	if n := len(differences); n > 0 {
		const told = 10
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonDiffers
		c.Message = strings.Join(differences[:min(n, told)], "; ")
		if n > told {
			c.Message += fmt.Sprintf("; and %d other types", n-told)
		}
		c.Message += "; plans reckon with what they are, correct the offer's data"
	}
	meta.SetStatusCondition(&cloud.Status.Conditions, c)
}

// restated is how often the time of unchanged offers is written again.
const restated = 10 * time.Minute

// shown is how many offers a status holds: an object that is too large could not
// be written at all, its health included.
const shown = 500

// market puts what a cloud told into its status.
func market(cloud *v1alpha1.BurstProvider, told observe.Told, now time.Time, stale time.Duration) {
	status := &cloud.Status
	seen := observe.Seen(told.Offers)
	health := metav1.Condition{Type: v1alpha1.ProviderHealthy, ObservedGeneration: cloud.Generation}
	switch {
	case told.Problem == nil && told.At.IsZero():
		return // not asked yet
	case told.Problem == nil:
		health.Status, health.Reason, health.Message = metav1.ConditionTrue, v1alpha1.ReasonOffersTold, "it tells its offers"
		if len(seen) > shown {
			health.Message = fmt.Sprintf("it tells its offers; %d of %d are shown", shown, len(seen))
		}
	case providers.KindOf(told.Problem) == providers.Unauthorized:
		health.Status, health.Reason = metav1.ConditionFalse, v1alpha1.ReasonUnauthorized
		health.Message = fmt.Sprintf("%v; renew the credentials in Secret %s", told.Problem, cloud.Spec.CredentialsSecret)
	case now.Sub(told.At) <= stale:
		health.Status, health.Reason = metav1.ConditionUnknown, v1alpha1.ReasonNoAnswer
		health.Message = fmt.Sprintf("it has not told its offers since %s: %v", told.At.UTC().Format(time.RFC3339), told.Problem)
	default:
		health.Status, health.Reason = metav1.ConditionFalse, v1alpha1.ReasonNoAnswer
		health.Message = fmt.Sprintf("it does not tell its offers: %v; nothing is bought here until it does", told.Problem)
	}
	meta.SetStatusCondition(&status.Conditions, health)
	if told.At.IsZero() {
		return
	}
	seen = seen[:min(len(seen), shown)]
	if status.OffersSeen == nil || told.At.Sub(status.OffersSeen.Time) >= restated || !slices.Equal(seen, status.Offers) {
		status.Offers, status.OffersSeen = seen, &metav1.Time{Time: told.At.UTC().Truncate(time.Second)}
	}
}

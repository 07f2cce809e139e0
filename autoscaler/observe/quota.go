package observe

import (
	"cmp"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"spillway.dev/spillway/autoscaler/placement"
	"spillway.dev/spillway/autoscaler/plan"
)

// quotas are the ResourceQuotas of the namespaces; the zero value has none. A
// pod beyond one is never created: where that is so, no machine would help.
type quotas map[string][]corev1.ResourceQuota

func newQuotas(all []corev1.ResourceQuota) quotas {
	q := quotas{}
	for i := range all {
		q[all[i].Namespace] = append(q[all[i].Namespace], all[i])
	}
	for _, of := range q {
		slices.SortFunc(of, func(a, b corev1.ResourceQuota) int { return cmp.Compare(a.Name, b.Name) })
	}
	return q
}

// missing says why a Job lacks pods that it wants, if a quota is why.
func (q quotas) missing(job *batchv1.Job) (plan.Reason, bool) {
	lacking := wanted(job) - int(job.Status.Active)
	if len(q[job.Namespace]) == 0 || lacking <= 0 || ended(job) || !job.DeletionTimestamp.IsZero() {
		return plan.Reason{}, false
	}
	p := podOf(plan.Owner{Namespace: job.Namespace, Name: job.Name, UID: job.UID}, job.Name, *job.Spec.Template.DeepCopy())
	requesting(&p)
	_, _, why := placement.Created(q[job.Namespace], []*corev1.Pod{&p})
	if why == "" {
		return plan.Reason{}, false // its controller is about to make them
	}
	return beyond(lacking, job.Namespace, why), true
}

// beyond is the reason of pods that a quota keeps from being created.
func beyond(pods int, namespace, why string) plan.Reason {
	return plan.Reason{
		Code: plan.NamespaceQuota, Message: fmt.Sprintf("%d of its pods can't be created in namespace %s: %s", pods, namespace, why),
		Remedy: "wait until work of the namespace ends, or have the quota raised: it bounds home and cloud together",
	}
}

func ended(job *batchv1.Job) bool {
	return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue
	})
}

// lack notes for the owner of each Job that a quota keeps short which of its
// pods are missing.
func (o *owners) lack(of func(*way) *members) {
	for _, x := range o.objects {
		if x.job == nil || x.suspended() || !x.asks() {
			continue
		}
		if why, short := o.quotas.missing(x.job); short {
			w := o.climb(x.Owner)
			m := of(w)
			m.ways[w] = true
			if m.short == nil || why.Message < m.short.Message {
				m.short = &why
			}
		}
	}
}

// charge has the quotas of their namespaces admit the pods of imagined work. A
// gang of which one is refused waits whole; of independent pods those that may
// be created go on.
func (q quotas) charge(g *plan.Gang) {
	namespace := g.Owner.Namespace
	if len(q[namespace]) == 0 {
		return
	}
	n, after, why := placement.Created(q[namespace], g.Pods)
	if q[namespace] = after; why == "" {
		return
	}
	reason := beyond(len(g.Pods)-n, namespace, why)
	if lacks(g, &reason, n); g.Short != nil {
		g.Pods = g.Pods[:n]
	}
}

// lacks puts down why pods of a gang don't exist, when there are so many others
// that wait. What must start together waits for all.
func lacks(g *plan.Gang, why *plan.Reason, others int) {
	switch {
	case why == nil || g.Hold != nil:
	case g.Together || others == 0:
		g.Hold = why
	default:
		g.Short = why
	}
}

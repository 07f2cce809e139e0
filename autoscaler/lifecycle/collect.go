package lifecycle

import (
	"context"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/nodeagent/link"
)

// collect brings logs home and checks that every result that a node reported
// written is at home with the same digest. No machine goes before that, or
// before the deadline, and then the loss is said aloud.
func (r *Reconciler) collect() []act {
	return []act{{fact: v1alpha1.ResultsHome, do: r.resultsHome, owed: true, due: record.letIn}}
}

func (r *Reconciler) resultsHome(ctx context.Context, b record) (outcome, error) {
	deadline := b.endedAt().Add(r.Settings.CollectDeadline)
	late := b.now.After(deadline)
	if _, err := r.look(ctx, b); err != nil { // who was here, also when nobody watched
		return outcome{}, err
	}
	unread, logsErr := r.logsHome(ctx, b)
	if logsErr != nil && !late {
		r.Log.Warn("logs are not home yet", "burst", b.Name, "error", logsErr)
		return outcome{wait: r.Settings.Poll}, nil
	}
	uploads, silent := r.uploads(b)
	returned, err := r.Data.Collect(ctx, b.Burst, uploads)
	if err != nil && !late {
		return outcome{}, err
	}
	b.Status.Data.ReturnedObjects, b.Status.Data.ReturnedBytes = returned.Objects, returned.Bytes
	missing := append(returned.Missing, silent...)
	switch {
	case err != nil:
		missing = append(missing, err.Error())
	case len(missing) > 0 && !late:
		return outcome{wait: r.Settings.Poll}, nil
	}
	if logsErr != nil {
		missing = append(missing, logsErr.Error())
	}
	if len(missing) == 0 {
		message := fmt.Sprintf("%d results, %d bytes, digests equal at home", returned.Objects, returned.Bytes)
		if len(unread) > 0 {
			message += "; deleted with their logs: pods " + strings.Join(unread, ", ")
		}
		return outcome{message: message}, nil
	}
	return outcome{
		status: metav1.ConditionFalse, reason: "ResultsLost",
		message: fmt.Sprintf("not home by %s: %s", deadline.UTC().Format(time.RFC3339), strings.Join(missing, "; ")),
	}, nil
}

// endedAt is from when the deadlines of the way back count.
func (b record) endedAt() time.Time {
	if at := b.at(v1alpha1.WorkDone); !at.IsZero() {
		return at
	}
	if at := b.at(v1alpha1.Ending); !at.IsZero() {
		return at
	}
	return b.now
}

// uploads gathers what the nodes say was written; a node that has not reported
// since the work ended, or whose pods still give their results back, is named.
func (r *Reconciler) uploads(b record) (all []link.Upload, silent []string) {
	d := &b.Status.Data
	d.ReadBytes = 0
	for _, node := range b.nodes() {
		report, seen, ok := r.Nodes.Report(node)
		// Conditions keep whole seconds: the end may be almost one later.
		if !ok || seen.Before(b.endedAt().Add(time.Second)) {
			silent = append(silent, fmt.Sprintf("node %s has not reported since the work ended", node))
			continue
		}
		if b.stopping() && !report.Drained {
			silent = append(silent, fmt.Sprintf("node %s has not stopped its pods yet", node))
		}
		d.ReadBytes += report.Cache.BytesServed
		all = append(all, report.Uploads...)
	}
	return all, silent
}

// logsHome keeps the logs of every pod that ran on the burst's nodes. A pod
// that was deleted took its logs along: it is named, and nobody waits for it.
func (r *Reconciler) logsHome(ctx context.Context, b record) (deleted []string, err error) {
	for i := range b.Status.Placed {
		p := &b.Status.Placed[i]
		if p.Logs != "" {
			continue
		}
		logs, err := r.Workload.Logs(ctx, b.Namespace, p.Name)
		if apierrors.IsNotFound(err) {
			deleted = append(deleted, p.Name)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("logs of pod %s: %w", p.Name, err)
		}
		name := fmt.Sprintf("logs/%s/%s.log", b.Namespace, p.Name)
		if err := r.Records.Keep(b.uid(), name, logs); err != nil {
			return nil, err
		}
		p.Logs = name
	}
	return deleted, nil
}

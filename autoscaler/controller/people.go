package controller

import (
	"context"
	"crypto/x509"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/inquiry"
)

// addPeople adds the desk at which people ask, where an address for it is set.
// Only the leader has it: nobody else knows the newest state.
func (p *process) addPeople(context.Context) error {
	if p.People == "" {
		return nil
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(p.ClusterCA) {
		return fmt.Errorf("cluster CA: no certificate in it")
	}
	certificate, err := p.keys.server(inquiry.ServiceName+":443", time.Now())
	if err != nil {
		return err
	}
	p.desk = inquiry.New(inquiry.Config{
		Kube: p.kube, ClientCA: clients, Certificate: certificate, Resources: p.askable(), Log: p.Log,
	})
	if err := p.mgr.Add(&tlsServer{name: "desk for people", server: p.desk.Outer(p.People, certificate), log: p.Log}); err != nil {
		return err
	}
	return p.mgr.Add(leaderFunc(func(ctx context.Context) error {
		if err := p.publish(ctx); err != nil {
			return err
		}
		<-ctx.Done()
		return p.desk.Close()
	}))
}

// askable are the kinds that people can ask about.
func (p *process) askable() []inquiry.Resource {
	all := []inquiry.Resource{
		{Kind: "Pod", Plural: "pods"},
		{Kind: "Job", Group: "batch", Plural: "jobs"},
		{Kind: "Burst", Group: v1alpha1.GroupVersion().Group, Plural: "bursts"},
	}
	for _, w := range p.watched {
		all = append(all, inquiry.Resource{Kind: w.Kind, Group: w.Group, Plural: w.Resource})
	}
	return all
}

// publish writes down by which authority people know the desk. It goes past the
// cache, which may not list ConfigMaps.
func (p *process) publish(ctx context.Context) error {
	published := applycorev1.ConfigMap(inquiry.ConfigMapName, v1alpha1.SystemNamespace).
		WithData(map[string]string{inquiry.AuthorityKey: string(p.keys.caPEM)})
	_, err := p.kube.CoreV1().ConfigMaps(v1alpha1.SystemNamespace).Apply(ctx, published, metav1.ApplyOptions{FieldManager: "spillway-controller", Force: true})
	if err != nil {
		return fmt.Errorf("publish the authority of the desk for people: %w", err)
	}
	return nil
}

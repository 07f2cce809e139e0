// Command kube is the test control plane in one binary: etcd, kube-apiserver,
// kube-scheduler, kube-controller-manager and kubectl of Kubernetes 1.37, built
// from their Go modules. It looks at the name it was called by, so links named
// after the components make it a drop-in for each of them; for tests and the
// demo, never for production.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	name := filepath.Base(os.Args[0])
	components := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllermanager.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kubectl":                 func() *cobra.Command { return kubectl.NewDefaultKubectlCommand() },
	}
	if name == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	command, known := components[name]
	if !known {
		fmt.Fprintf(os.Stderr, "kube: called as %q; call it through a link named etcd, kube-apiserver, kube-scheduler, kube-controller-manager or kubectl\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(command()))
}

package controller

import (
	"testing"

	kubefake "k8s.io/client-go/kubernetes/fake"

	"spillway.dev/spillway/datasync/stager"
	"spillway.dev/spillway/e2e/keyservice"
)

func TestSecretsKeepThePromises(t *testing.T) {
	keyservice.Run(t, keyservice.Suite{New: func(*testing.T) stager.KEKs { return secretKEKs{kubefake.NewClientset()} }})
}

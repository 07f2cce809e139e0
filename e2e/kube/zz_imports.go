package main

import (
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/minio/minio-go/v7"
	_ "github.com/prometheus/client_golang/prometheus"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/versity/versitygw/backend/posix"
	_ "github.com/versity/versitygw/s3api"
	_ "modernc.org/sqlite"
	_ "pgregory.net/rapid"
	_ "sigs.k8s.io/cluster-api/api/core/v1beta2"
	_ "sigs.k8s.io/cluster-api/controllers/clustercache"
	_ "sigs.k8s.io/cluster-api/core/reconcilers/cluster"
	_ "sigs.k8s.io/cluster-api/core/reconcilers/machine"
	_ "sigs.k8s.io/controller-runtime"
	_ "sigs.k8s.io/controller-runtime/pkg/controller"
)

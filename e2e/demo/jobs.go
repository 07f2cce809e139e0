package demo

import (
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
)

// The buckets at home.
const (
	dataBucket    = "vision-data"
	resultsBucket = "vision-results"
)

// shape is what differs between the demo's Jobs.
type shape struct {
	namespace, name string
	gpus            int
	deadlineSeconds int64
	endpoint        string
	epochs, passes  int
	command         []string
}

// trainJob is an ordinary Job: nothing in it knows where it will run. Its
// annotations name what it reads and writes, so that a burst can stage it.
func trainJob(s shape) *batchv1.Job {
	if s.command == nil {
		s.command = []string{"spillway", "demo-train"}
	}
	no := int32(2)
	gpus := resource.MustParse(fmt.Sprint(s.gpus))
	keys := func(key string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "store-keys"}, Key: key,
		}}
	}
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: s.name},
		Spec: batchv1.JobSpec{
			BackoffLimit: &no, ActiveDeadlineSeconds: &s.deadlineSeconds,
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
					v1alpha1.InputsAnnotation:  "s3://" + dataBucket + "/train/",
					v1alpha1.OutputsAnnotation: "s3://" + resultsBucket + "/",
				}},
				Spec: corev1.PodSpec{
					RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(bool),
					Containers: []corev1.Container{{
						Name: "train", Image: "registry.onprem.test/vision/train:1", Command: s.command,
						Env: []corev1.EnvVar{
							{Name: "JOB", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['batch.kubernetes.io/job-name']"}}},
							{Name: "S3_ENDPOINT", Value: s.endpoint},
							{Name: "AWS_ACCESS_KEY_ID", ValueFrom: keys("accessKey")},
							{Name: "AWS_SECRET_ACCESS_KEY", ValueFrom: keys("secretKey")},
							{Name: "INPUT", Value: "s3://" + dataBucket + "/train/"},
							{Name: "OUTPUT", Value: "s3://" + resultsBucket + "/$(JOB)/"},
							{Name: "EPOCHS", Value: fmt.Sprint(s.epochs)},
							{Name: "PASSES", Value: fmt.Sprint(s.passes)},
						},
						Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": gpus}},
					}},
				},
			},
		},
	}
}

package demo

import (
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
)

// TrainArg is the argument by which a program is asked to be [Train].
const TrainArg = "demo-train"

// The buckets at home: what the Jobs read, and what they write.
const (
	DataBucket    = "vision-data"
	ResultsBucket = "vision-results"
)

// Shape is what differs between the Jobs of a story.
type Shape struct {
	Namespace, Name string
	GPUs            int
	DeadlineSeconds int64
	Endpoint        string // URL of the store as the Job writes it
	Epochs, Passes  int
	Command         []string // default: spillway demo-train
}

// TrainJob is an ordinary Job: nothing in it knows where it will run. Its
// annotations name what it reads and writes, so that a burst can stage it.
func TrainJob(s Shape) *batchv1.Job {
	if s.Command == nil {
		s.Command = []string{"spillway", TrainArg}
	}
	no := int32(2)
	gpus := resource.MustParse(fmt.Sprint(s.GPUs))
	keys := func(key string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "store-keys"}, Key: key,
		}}
	}
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name},
		Spec: batchv1.JobSpec{
			BackoffLimit: &no, ActiveDeadlineSeconds: &s.DeadlineSeconds,
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
					v1alpha1.InputsAnnotation:  "s3://" + DataBucket + "/train/",
					v1alpha1.OutputsAnnotation: "s3://" + ResultsBucket + "/",
				}},
				Spec: corev1.PodSpec{
					RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(bool),
					Containers: []corev1.Container{{
						Name: "train", Image: "registry.onprem.test/vision/train:1", Command: s.Command,
						Env: []corev1.EnvVar{
							{Name: "JOB", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['batch.kubernetes.io/job-name']"}}},
							{Name: "S3_ENDPOINT", Value: s.Endpoint},
							{Name: "AWS_ACCESS_KEY_ID", ValueFrom: keys("accessKey")},
							{Name: "AWS_SECRET_ACCESS_KEY", ValueFrom: keys("secretKey")},
							{Name: "INPUT", Value: "s3://" + DataBucket + "/train/"},
							{Name: "OUTPUT", Value: "s3://" + ResultsBucket + "/$(JOB)/"},
							{Name: "EPOCHS", Value: fmt.Sprint(s.Epochs)},
							{Name: "PASSES", Value: fmt.Sprint(s.Passes)},
						},
						Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": gpus}},
					}},
				},
			},
		},
	}
}

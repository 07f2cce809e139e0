package demo

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"strconv"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"spillway.dev/spillway/datasync"
)

// Train is the program of the demo's Jobs: logistic regression by gradient
// descent over every object below INPUT, the model written to OUTPUT. It knows
// plain S3 and nothing of Spillway; its settings are environment variables of
// its manifest. Equal inputs give equal bytes.
func Train(ctx context.Context, out io.Writer) error {
	t, err := trainerFromEnv()
	if err != nil {
		return err
	}
	keys, err := t.list(ctx)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(out, "training on %d objects at %s, %d epochs\n", len(keys), os.Getenv("S3_ENDPOINT"), t.epochs)
	for epoch := range t.epochs {
		t.right, t.seen, t.bytes = 0, 0, 0
		for _, key := range keys {
			if err := t.object(ctx, key); err != nil {
				return err
			}
		}
		_, _ = fmt.Fprintf(out, "epoch %d: %d records, %d bytes, accuracy %.4f\n", epoch+1, t.seen, t.bytes, float64(t.right)/float64(max(1, t.seen)))
	}
	return t.save(ctx, out)
}

type trainer struct {
	client         *minio.Client
	input, output  datasync.Ref
	epochs, passes int

	weights     [features + 1]float64
	right, seen int
	bytes       int64
}

func trainerFromEnv() (*trainer, error) {
	t := &trainer{}
	endpoint, err := url.Parse(os.Getenv("S3_ENDPOINT"))
	if err != nil || endpoint.Host == "" {
		return nil, fmt.Errorf("S3_ENDPOINT %q is no URL of a store", os.Getenv("S3_ENDPOINT"))
	}
	t.client, err = minio.New(endpoint.Host, &minio.Options{
		Creds:  credentials.NewStaticV4(os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY"), ""),
		Secure: endpoint.Scheme == "https", Region: "us-east-1",
	})
	if err != nil {
		return nil, fmt.Errorf("S3 client: %w", err)
	}
	if t.input, err = datasync.ParseRef(os.Getenv("INPUT")); err != nil {
		return nil, fmt.Errorf("INPUT: %w", err)
	}
	if t.output, err = datasync.ParseRef(os.Getenv("OUTPUT")); err != nil {
		return nil, fmt.Errorf("OUTPUT: %w", err)
	}
	var bad error
	for name, to := range map[string]*int{"EPOCHS": &t.epochs, "PASSES": &t.passes} {
		if *to, err = strconv.Atoi(os.Getenv(name)); err != nil || *to < 1 {
			bad = errors.Join(bad, fmt.Errorf("%s %q is no count", name, os.Getenv(name)))
		}
	}
	return t, bad
}

func (t *trainer) list(ctx context.Context) ([]string, error) {
	var keys []string
	for o := range t.client.ListObjects(ctx, t.input.Bucket, minio.ListObjectsOptions{Prefix: t.input.Prefix, Recursive: true}) {
		if o.Err != nil {
			return nil, fmt.Errorf("list %s: %w", t.input, o.Err)
		}
		keys = append(keys, o.Key)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("nothing to train on below %s", t.input)
	}
	return keys, nil
}

// object reads one object and takes gradient steps over its records.
func (t *trainer) object(ctx context.Context, key string) error {
	o, err := t.client.GetObject(ctx, t.input.Bucket, key, minio.GetObjectOptions{})
	if err != nil {
		return fmt.Errorf("read %s: %w", key, err)
	}
	data, err := io.ReadAll(o)
	if err := errors.Join(err, o.Close()); err != nil {
		return fmt.Errorf("read %s: %w", key, err)
	}
	t.bytes += int64(len(data))
	if len(data) < canaryBytes || (len(data)-canaryBytes)%recordBytes != 0 {
		return fmt.Errorf("read %s: %d bytes are no whole number of records", key, len(data))
	}
	records := parse(data[canaryBytes:])
	for pass := range t.passes {
		t.step(records, pass == 0)
	}
	return nil
}

type record struct {
	label float64
	x     [features]float64
}

func parse(data []byte) []record {
	out := make([]record, 0, len(data)/recordBytes)
	value := func(at int) float64 {
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(data[at:])))
	}
	for at := 0; at < len(data); at += recordBytes {
		r := record{label: value(at)}
		for f := range r.x {
			r.x[f] = value(at + 4 + 4*f)
		}
		out = append(out, r)
	}
	return out
}

// step is one step of gradient descent over the records of one object.
func (t *trainer) step(records []record, count bool) {
	var gradient [features + 1]float64
	for i := range records {
		r := &records[i]
		sum := t.weights[features]
		for f, x := range r.x {
			sum += t.weights[f] * x
		}
		wrong := 1/(1+math.Exp(-sum)) - r.label
		for f, x := range r.x {
			gradient[f] += wrong * x
		}
		gradient[features] += wrong
		if count {
			t.seen++
			if math.Abs(wrong) < 0.5 {
				t.right++
			}
		}
	}
	const rate = 0.05
	for f := range gradient {
		t.weights[f] -= rate * gradient[f] / float64(len(records))
	}
}

// save writes the model.
func (t *trainer) save(ctx context.Context, out io.Writer) error {
	model, err := json.MarshalIndent(map[string]any{
		"kind": "logistic-regression", "features": features, "epochs": t.epochs, "records": t.seen,
		"accuracy": float64(t.right) / float64(t.seen), "weights": t.weights,
	}, "", " ")
	if err != nil {
		return fmt.Errorf("encode the model: %w", err)
	}
	key := t.output.Prefix + "model.json"
	_, err = t.client.PutObject(ctx, t.output.Bucket, key, bytes.NewReader(model), int64(len(model)), minio.PutObjectOptions{ContentType: "application/json"})
	if err != nil {
		return fmt.Errorf("write s3://%s/%s: %w", t.output.Bucket, key, err)
	}
	_, _ = fmt.Fprintf(out, "model written to s3://%s/%s, %d bytes\n", t.output.Bucket, key, len(model))
	return nil
}

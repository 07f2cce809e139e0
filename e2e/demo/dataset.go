package demo

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"

	"github.com/minio/minio-go/v7"
)

// The training set: objects of records, each record a label and features.
const (
	objects     = 320
	features    = 32
	recordBytes = 4 * (features + 1)
	recordsAll  = 64 << 20 / recordBytes
	canaryBytes = 64
	seedBytes   = 32
)

// Canaries are strings that stand in every object of the training set and
// nowhere else in the world; one that is found outside home is cleartext.
func Canaries() []string {
	list := make([]string, 4)
	for i := range list {
		r := rand.New(rand.NewChaCha8(seed(uint64(1000 + i))))
		word := fmt.Sprintf("CANARY-%d-", i)
		for len(word) < canaryBytes {
			word += string(rune('A' + r.IntN(26)))
		}
		list[i] = word
	}
	return list
}

func seed(n uint64) (s [seedBytes]byte) {
	binary.LittleEndian.PutUint64(s[:], n)
	return s
}

// objectName is the key of one object of the training set.
func objectName(i int) string { return fmt.Sprintf("train/shard-%04d.bin", i) }

// Shard makes one object, the same on every run: a canary, then records
// whose labels follow a hidden plane with some noise. Sizes differ by far.
func Shard(i int) []byte {
	r := rand.New(rand.NewChaCha8(seed(uint64(i))))
	share := 0.1 + 1.8*rand.New(rand.NewChaCha8(seed(uint64(i)+5000))).Float64()
	n := max(1, int(share*float64(recordsAll)/objects))
	var out bytes.Buffer
	out.Grow(canaryBytes + n*recordBytes)
	out.WriteString(Canaries()[i%len(Canaries())])
	plane := rand.New(rand.NewChaCha8(seed(42)))
	var hidden [features]float64
	for f := range hidden {
		hidden[f] = plane.NormFloat64()
	}
	record := make([]byte, recordBytes)
	for range n {
		sum := r.NormFloat64()
		for f := range hidden {
			x := float32(r.NormFloat64())
			sum += hidden[f] * float64(x)
			binary.LittleEndian.PutUint32(record[4+4*f:], math.Float32bits(x))
		}
		label := float32(0)
		if sum > 0 {
			label = 1
		}
		binary.LittleEndian.PutUint32(record, math.Float32bits(label))
		out.Write(record)
	}
	return out.Bytes()
}

// fill uploads the training set and reports the bytes as they go.
func fill(ctx context.Context, c *minio.Client, bucket string, progress func(done int64)) (int64, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	sizes, todo := make(chan int64, objects), make(chan int, objects)
	for i := range objects {
		todo <- i
	}
	close(todo)
	upload := func() {
		for i := range todo {
			data := Shard(i)
			_, err := c.PutObject(ctx, bucket, objectName(i), bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{ContentType: "application/octet-stream"})
			if err != nil {
				stop(fmt.Errorf("upload %s: %w", objectName(i), err))
				return
			}
			sizes <- int64(len(data))
		}
	}
	var uploads sync.WaitGroup
	for range 4 {
		uploads.Go(upload)
	}
	go func() { uploads.Wait(); close(sizes) }()
	total := int64(0)
	for n := range sizes {
		total += n
		progress(total)
	}
	return total, context.Cause(ctx)
}

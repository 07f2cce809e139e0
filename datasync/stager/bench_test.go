package stager_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"spillway.dev/spillway/datasync/stager"
)

// Encrypted staging from one store to another, against rclone, which copies
// the same objects between the same stores without encryption, in turn, on the
// same cores. With -short the sets are a sixteenth.
func BenchmarkStage(b *testing.B) {
	for _, set := range []struct {
		name           string
		objects, bytes int
	}{{"1x4GiB", 1, 4 << 30}, {"1000x4MiB", 1000, 4 << 20}, {"20000x10KiB", 20_000, 10 << 10}} {
		b.Run(set.name, func(b *testing.B) {
			objects, size := set.objects, set.bytes
			switch {
			case testing.Short() && objects == 1:
				size /= 16
			case testing.Short():
				objects /= 16
			}
			s := newSite(b)
			s.fill(b, objects, size)
			st := s.stager(b)
			resetPeak(b)
			var mine, theirs time.Duration
			for n := 0; b.Loop(); n++ {
				burst, bucket := fmt.Sprint("b", n), fmt.Sprint("peer", n)
				start := time.Now()
				for p := (stager.Progress{}); !p.Done; time.Sleep(time.Millisecond) {
					var err error
					if p, err = st.Stage(b.Context(), s.job(burst, "s3://data/set/")); err != nil {
						b.Fatal(err)
					}
				}
				mine += time.Since(start)
				start = time.Now()
				s.rclone(b, bucket)
				theirs += time.Since(start)
				b.StopTimer()
				s.check(b, stager.BucketName(burst), objects+1) // and the manifest
				s.check(b, bucket, objects)
				b.StartTimer()
			}
			b.ReportMetric(theirs.Seconds()/mine.Seconds(), "x-rclone")
			b.ReportMetric(float64(objects*size*b.N)/1e6/mine.Seconds(), "MB/s")
			b.ReportMetric(peakMiB(b), "MiB-resident")
		})
	}
}

// fill puts the set to be staged.
func (s *site) fill(b *testing.B, objects, size int) {
	b.Helper()
	data := []byte(noise(min(size, 1<<20), 1))
	for i := range objects {
		body := bytes.NewReader(bytes.Repeat(data, (size+len(data)-1)/len(data))[:size])
		opts := minio.PutObjectOptions{DisableContentSha256: true}
		if _, err := s.homec.Client.PutObject(b.Context(), "data", fmt.Sprintf("set/%05d", i), body, int64(size), opts); err != nil {
			b.Fatal(err)
		}
	}
}

// rclone copies the set into a bucket, with as many transfers as we have.
func (s *site) rclone(b *testing.B, bucket string) {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), "rclone", "--config", "/dev/null", "copy", "home:data/set", "away:"+bucket,
		"--transfers", "8", "--checkers", "16", "--fast-list", "--s3-upload-concurrency", "4", "--s3-chunk-size", "16M",
		"--s3-disable-checksum", "--s3-no-head", "--no-check-dest", "--ignore-checksum", "--no-update-modtime")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.TempDir()}
	for name, url := range map[string]string{"HOME": s.home.URL, "AWAY": s.away.URL} {
		for key, value := range map[string]string{
			"TYPE": "s3", "PROVIDER": "Other", "ENDPOINT": url, "ACCESS_KEY_ID": "root", "SECRET_ACCESS_KEY": "rootsecret", "REGION": "us-east-1",
		} {
			cmd.Env = append(cmd.Env, "RCLONE_CONFIG_"+name+"_"+key+"="+value)
		}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("rclone, the peer (apt-get install rclone): %v\n%s", err, out)
	}
}

// check counts a bucket's objects and removes them, so that the disk does not
// fill.
func (s *site) check(b *testing.B, bucket string, want int) {
	b.Helper()
	got := 0
	for o := range s.awayc.ListObjectsIter(b.Context(), bucket, minio.ListObjectsOptions{Recursive: true}) {
		if o.Err != nil {
			b.Fatal(o.Err)
		}
		got++
		if err := s.awayc.RemoveObject(b.Context(), bucket, o.Key, minio.RemoveObjectOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	if got != want {
		b.Fatalf("%s holds %d objects, want %d", bucket, got, want)
	}
}

// resetPeak lets the kernel forget this process' peak of resident memory.
func resetPeak(b *testing.B) {
	b.Helper()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		b.Fatal(err)
	}
}

// peakMiB is this process' peak of resident memory.
func peakMiB(b *testing.B) float64 {
	b.Helper()
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			if err != nil {
				b.Fatal(err)
			}
			return float64(kib) / 1024
		}
	}
	b.Fatal("the kernel tells no VmHWM")
	return 0
}

// A wipe, with the looks that show that nothing is left, against the plain
// deletion of as many objects in the same store, in turn. On Ceph's gateway
// with the build tag ceph. With -short it is a tenth of the objects.
func BenchmarkWipe(b *testing.B) {
	objects := 10_000
	if testing.Short() {
		objects /= 10
	}
	s := newSite(b)
	st := s.stager(b)
	var mine, theirs time.Duration
	for n := 0; b.Loop(); n++ {
		burst, peer := fmt.Sprint("w", n), fmt.Sprint("peer", n)
		b.StopTimer()
		s.heap(b, stager.BucketName(burst), objects)
		s.heap(b, peer, objects)
		b.StartTimer()
		start := time.Now()
		w, err := st.Wipe(b.Context(), stager.WipeJob{Burst: burst, Staging: s.away})
		mine += time.Since(start)
		if err != nil || w.ObjectsDeleted != objects {
			b.Fatalf("%+v, %v", w, err)
		}
		start = time.Now()
		s.plainly(b, peer)
		theirs += time.Since(start)
	}
	b.ReportMetric(theirs.Seconds()/mine.Seconds(), "x-delete")
	b.ReportMetric(float64(objects*b.N)/mine.Seconds(), "objects/s")
}

// heap makes a bucket of small objects.
func (s *site) heap(b *testing.B, bucket string, objects int) {
	b.Helper()
	if err := s.awayc.MakeBucket(b.Context(), bucket, minio.MakeBucketOptions{}); err != nil {
		b.Fatal(err)
	}
	todo := make(chan int, objects)
	for i := range objects {
		todo <- i
	}
	close(todo)
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for i := range todo {
				if _, err := s.awayc.Client.PutObject(b.Context(), bucket, fmt.Sprintf("%05d", i), strings.NewReader("x"), 1, minio.PutObjectOptions{DisableContentSha256: true}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if b.Failed() {
		b.FailNow()
	}
}

// plainly deletes a bucket's objects by DeleteObjects, 1,000 at a time, as its
// listing names them, and believes the answers.
func (s *site) plainly(b *testing.B, bucket string) {
	b.Helper()
	found := s.awayc.Client.ListObjects(b.Context(), bucket, minio.ListObjectsOptions{Recursive: true})
	for e := range s.awayc.Client.RemoveObjects(b.Context(), bucket, found, minio.RemoveObjectsOptions{}) {
		b.Fatal(e.Err)
	}
	if err := s.awayc.RemoveBucket(b.Context(), bucket); err != nil {
		b.Fatal(err)
	}
}

package cache_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"flag"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/stager"
)

var (
	kills    = flag.Int("kills", 12, "how often TestKilledAtAnyMoment kills a process")
	killSeed = flag.Uint64("killseed", 2, "seed of TestKilledAtAnyMoment")
)

// killsEach is how many kills one burst has to bear.
const killsEach = 12

// Stager, gate and front are killed at drawn moments, while a burst is staged
// and while its job runs, and each comes back. The job, which starts anew
// whenever it fails, gets the very bytes of its inputs or an error, and its
// result is the same at every try; in the end nothing is left in the staging
// store and on the node, and no upload is left open at home.
//
// With -kills=100 it is run for longer, with -killseed for other moments.
func TestKilledAtAnyMoment(t *testing.T) {
	g := &rig{store: openHome(t)}
	g.root = g.client(t, g.store.Addr(), "root", "rootsecret")
	if err := g.root.MakeBucket(t.Context(), "data", minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := g.root.SetBucketPolicy(t.Context(), "data", g.store.Policy("data", "job")); err != nil {
		t.Fatal(err)
	}
	inputs := map[string][]byte{"set/00-large": blob(40<<20, "large")} // is staged in parts
	for i := range 40 {
		inputs[fmt.Sprintf("set/%02d", i)] = blob(i*4111, fmt.Sprint(i))
	}
	for key, body := range inputs {
		g.put(t, key, body)
	}
	dice := mathrand.New(mathrand.NewPCG(*killSeed, 0))
	total := map[string]int{}
	for done, round := 0, 0; done < *kills; round++ {
		n := min(killsEach, *kills-done)
		w := newWay(t, g, fmt.Sprintf("kill-%d", round))
		w.bear(dice, n, inputs, total)
		w.over(inputs)
		done += n
	}
	t.Logf("seed %d: %v", *killSeed, total)
}

// wayTest is one burst whose processes are killed.
type wayTest struct {
	way
	t     *testing.T
	g     *rig
	keys  *stager.Custody
	parts map[string]*exec.Cmd
}

func newWay(t *testing.T, g *rig, burst string) *wayTest {
	t.Helper()
	_, signer, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := newAuthority(t)
	issue := func(name pkix.Name) keyPair {
		c := ca.issue(t, name)
		key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
		if err != nil {
			t.Fatal(err)
		}
		return keyPair{c.Certificate[0], key}
	}
	w := &wayTest{t: t, g: g, parts: map[string]*exec.Cmd{}, way: way{
		Dir: t.TempDir(), Burst: burst, Store: g.store.URL(), Gate: freeAddr(t), Front: freeAddr(t), Signer: signer, CA: ca.pem,
		GateCert: issue(pkix.Name{CommonName: "gate"}),
		NodeCert: issue(pkix.Name{CommonName: "system:node:n1", Organization: []string{"system:nodes"}}),
	}}
	if w.keys, err = stager.NewFileKeys(w.file("keys"), rand.Reader, time.Now); err != nil {
		t.Fatal(err)
	}
	if err := w.write("way", w.way); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for name := range w.parts {
			w.kill(name)
		}
	})
	return w
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (w *wayTest) start(part string) {
	w.t.Helper()
	cmd := exec.Command(os.Args[0], partArg, part, w.Dir)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.parts[part] = cmd
}

// kill ends a part without a word to it.
func (w *wayTest) kill(part string) {
	_ = w.parts[part].Process.Kill()
	_ = w.parts[part].Wait()
	delete(w.parts, part)
}

// bear runs the burst while its parts are killed n times, and then until its
// job has run to its end once more.
func (w *wayTest) bear(dice *mathrand.Rand, n int, inputs map[string][]byte, total map[string]int) {
	w.t.Helper()
	parts := []string{"stager", "gate", "front"}
	for _, part := range parts {
		w.start(part)
	}
	ctx, stop := context.WithCancel(w.t.Context())
	defer stop()
	ran := make(chan error)
	go w.runJobs(ctx, inputs, ran)
	begun := time.Now()
	for i := range n {
		if i == n/2 { // the other half of the kills is for the job
			w.until(ran, total, func(error) bool { return w.isStaged() })
		}
		wait := time.After(time.Duration(dice.IntN(150)) * time.Millisecond)
		for waiting := true; waiting; {
			select {
			case err := <-ran:
				w.tally(err, total)
			case <-wait:
				waiting = false
			}
		}
		part := parts[dice.IntN(len(parts))]
		phase := "while it is staged"
		if w.isStaged() {
			phase = "while the job runs"
		}
		w.kill(part)
		w.start(part)
		total["kill of "+part+" "+phase]++
	}
	good := 0 // one job began when nothing was killed any more, and the cache was filled
	w.until(ran, total, func(err error) bool {
		var pid int
		if w.read("filled", &pid) == nil && pid == w.parts["front"].Process.Pid && err == nil {
			good++
		}
		return good == 2
	})
	w.t.Logf("%s: %d kills, over after %v", w.Burst, n, time.Since(begun).Round(time.Millisecond))
}

func (w *wayTest) isStaged() bool {
	_, err := os.Stat(w.file("staged"))
	return err == nil
}

// until lets jobs run until one has ended at a good time.
func (w *wayTest) until(ran <-chan error, total map[string]int, good func(error) bool) {
	w.t.Helper()
	late := time.After(2 * time.Minute)
	for {
		select {
		case <-late:
			w.t.Fatalf("%s: it is not staged, the cache is not filled, or the job does not come to its end", w.Burst)
		case err := <-ran:
			w.tally(err, total)
			if good(err) {
				return
			}
		}
	}
}

var errWrongBytes = errors.New("wrong bytes")

func (w *wayTest) tally(err error, total map[string]int) {
	w.t.Helper()
	switch {
	case err == nil:
		total["jobs that ended well"]++
	case errors.Is(err, errWrongBytes):
		w.t.Fatal(err)
	default:
		total["jobs that failed"]++
	}
}

// runJobs runs the job again and again and says how each run ended.
func (w *wayTest) runJobs(ctx context.Context, inputs map[string][]byte, ran chan<- error) {
	client := w.g.client(w.t, w.Front, "job", "jobsecret")
	for ctx.Err() == nil {
		err := w.job(ctx, client, inputs)
		if err != nil {
			time.Sleep(20 * time.Millisecond) // the back-off of a Job
		}
		select {
		case ran <- err:
		case <-ctx.Done():
		}
	}
}

// job reads all inputs and writes what it made of them.
func (w *wayTest) job(ctx context.Context, c *minio.Core, inputs map[string][]byte) error {
	sums := sha256.New()
	for _, key := range sorted(inputs) {
		body, _, _, err := c.GetObject(ctx, "data", key, minio.GetObjectOptions{})
		if err != nil {
			return err
		}
		var got bytes.Buffer
		_, err = got.ReadFrom(body)
		_ = body.Close()
		if !bytes.HasPrefix(inputs[key], got.Bytes()) || err == nil && got.Len() != len(inputs[key]) {
			return fmt.Errorf("%s: %d bytes of %s: %w", w.Burst, got.Len(), key, errWrongBytes)
		}
		if err != nil {
			return err
		}
		sums.Write(got.Bytes())
	}
	result := sums.Sum(nil)
	_, err := c.Client.PutObject(ctx, "data", "out/"+w.Burst, bytes.NewReader(result), int64(len(result)), minio.PutObjectOptions{DisableContentSha256: true})
	return err
}

// over ends the burst in order, and looks for what must be there and what must
// not.
func (w *wayTest) over(inputs map[string][]byte) {
	w.t.Helper()
	front := w.parts["front"]
	if err := front.Process.Signal(syscall.SIGTERM); err != nil {
		w.t.Fatal(err)
	}
	if err := front.Wait(); err != nil {
		w.t.Errorf("the front did not end in order: %v", err)
	}
	delete(w.parts, "front")
	w.kill("gate")
	w.kill("stager")
	if _, err := os.Stat(w.file("cache")); !errors.Is(err, os.ErrNotExist) {
		w.t.Errorf("the cache is still there: %v", err)
	}
	st := stager.New(stager.Config{Keys: w.keys, Signer: w.Signer, Random: rand.Reader, Now: time.Now})
	defer st.Close()
	var uploads []datasync.Upload
	if err := w.read("uploads", &uploads); err != nil {
		w.t.Fatal(err)
	}
	home, err := st.Collect(w.t.Context(), stager.CollectJob{Burst: w.Burst, Source: w.end(), Uploads: uploads})
	if err != nil || home.Objects != 1 || home.Results[0].SHA256 != resultOf(inputs) {
		w.t.Errorf("Collect: %+v, %v: want the one result, %s", home, err, resultOf(inputs))
	}
	wiped, err := st.Wipe(w.t.Context(), stager.WipeJob{Burst: w.Burst, Staging: w.end()})
	if err != nil || wiped.ObjectsDeleted != len(inputs)+1 {
		w.t.Errorf("Wipe: %+v, %v: want %d objects and the manifest", wiped, err, len(inputs))
	}
	if there, err := w.g.root.BucketExists(w.t.Context(), stager.BucketName(w.Burst)); there || err != nil {
		w.t.Errorf("the staging bucket is still there: %v, %v", there, err)
	}
	open, err := w.g.root.ListMultipartUploads(w.t.Context(), "data", "", "", "", "", 10)
	if err != nil || len(open.Uploads) > 0 {
		w.t.Errorf("uploads left open at home: %+v, %v", open.Uploads, err)
	}
}

// sorted are the keys of the inputs, in the order in which the job reads them.
func sorted(inputs map[string][]byte) []string { return slices.Sorted(maps.Keys(inputs)) }

// resultOf is the digest of the one result that is right.
func resultOf(inputs map[string][]byte) string {
	sums := sha256.New()
	for _, key := range sorted(inputs) {
		sums.Write(inputs[key])
	}
	return digest(sums.Sum(nil))
}

package cache_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/cache"
	"spillway.dev/spillway/datasync/s3"
	"spillway.dev/spillway/datasync/stager"
)

// partArg makes this test binary one part of a burst's way, in a process of its
// own that can be killed: stager, gate, or front.
const partArg = "a-part-of-the-way"

// way is what the processes of one burst know.
type way struct {
	Dir, Burst  string
	Store       string // URL of the store at home, which is the staging store too
	Gate, Front string // addresses
	Signer      ed25519.PrivateKey
	CA          []byte // PEM
	GateCert    keyPair
	NodeCert    keyPair
}

type keyPair struct{ Cert, Key []byte } // DER, PKCS 8

func (p keyPair) load() (tls.Certificate, error) {
	key, err := x509.ParsePKCS8PrivateKey(p.Key)
	return tls.Certificate{Certificate: [][]byte{p.Cert}, PrivateKey: key}, err
}

func (w way) file(name string) string { return filepath.Join(w.Dir, name) }

func (w way) end() s3.Endpoint {
	return s3.Endpoint{URL: w.Store, AccessKey: "root", SecretKey: "rootsecret"}
}

// write puts a file in place as a whole.
func (w way) write(name string, v any) error {
	data, err := json.Marshal(v)
	if err == nil {
		err = os.WriteFile(w.file(name+".part"), data, 0o600)
	}
	if err == nil {
		err = os.Rename(w.file(name+".part"), w.file(name))
	}
	return err
}

func (w way) read(name string, v any) error {
	data, err := os.ReadFile(w.file(name))
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	return err
}

// runPart runs the part that the command line names.
func runPart(args []string) int {
	w := way{Dir: args[1]}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := w.read("way", &w)
	switch {
	case err != nil:
	case args[0] == "stager":
		err = w.beStager(ctx)
	case args[0] == "gate":
		err = w.beGate(ctx)
	case args[0] == "front":
		err = w.beFront(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, args[0]+":", err)
		return 1
	}
	return 0
}

// beStager stages, and says so again and again, as a controller that looks
// after its burst does.
func (w way) beStager(ctx context.Context) error {
	keys, err := stager.NewFileKeys(w.file("keys"), rand.Reader, time.Now)
	if err != nil {
		return err
	}
	st := stager.New(stager.Config{Keys: keys, Signer: w.Signer, Random: rand.Reader, Now: time.Now})
	defer st.Close()
	job := stager.StageJob{
		Burst: w.Burst, Tenant: "team-vision", Inputs: []datasync.Ref{{Bucket: "data", Prefix: "set/"}},
		Sources: []stager.Source{{Endpoint: w.end(), Bucket: "data"}}, Staging: w.end(), Expires: time.Now().Add(time.Hour),
	}
	for ctx.Err() == nil {
		p, err := st.Stage(ctx, job)
		if err == nil && p.Done {
			err = w.write("staged", p)
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		time.Sleep(5 * time.Millisecond) // the poll of a controller
	}
	return nil
}

func (w way) beGate(ctx context.Context) error {
	store, err := url.Parse(w.Store)
	if err != nil {
		return err
	}
	gate := stager.NewGate(stager.GateConfig{
		Store: store, Hosts: []string{storeName}, Now: time.Now,
		NodeBurst: func(node string) (string, bool) { return w.Burst, node == "n1" },
	})
	gate.Allow(w.Burst, time.Now().Add(time.Hour), []stager.Grant{{Bucket: "data", Methods: []string{"GET", "PUT", "POST", "DELETE"}}})
	cert, err := w.GateCert.load()
	if err != nil {
		return err
	}
	config, err := stager.GateTLS(cert, w.CA)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", w.Gate)
	if err != nil {
		return err
	}
	s := &http.Server{Handler: gate, ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(tls.NewListener(l, config)) }()
	<-ctx.Done()
	return s.Close()
}

// beFront is what an agent does with its front: it serves from the start on,
// and has the key and the cache as soon as they are to be had. Told to end, it
// says what jobs wrote, and wipes.
func (w way) beFront(ctx context.Context) error {
	node, err := w.NodeCert.load()
	if err != nil {
		return err
	}
	cas := x509.NewCertPool()
	cas.AppendCertsFromPEM(w.CA)
	f, err := cache.New(cache.Config{
		Burst: w.Burst, Gate: &url.URL{Scheme: "https", Host: w.Gate}, Hosts: []string{storeName},
		Transport: cache.Transport(func() (*tls.Certificate, error) { return &node, nil }, cas),
		Dir:       w.file("cache"), Results: w.file("results"), Local: func(netip.Addr) bool { return true },
		Random: rand.Reader, Now: time.Now,
	})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", w.Front)
	if err != nil {
		return err
	}
	s := &http.Server{Handler: f, ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(l) }()
	for w.fill(ctx, f) != nil && ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond) // not staged yet
	}
	if err := w.write("filled", os.Getpid()); err != nil {
		return err
	}
	<-ctx.Done()
	if err := w.write("uploads", f.Uploads()); err != nil {
		return err
	}
	_, err = f.Wipe()
	return err
}

func (w way) fill(ctx context.Context, f *cache.Front) error {
	var p stager.Progress
	if err := w.read("staged", &p); err != nil {
		return err
	}
	keys, err := stager.NewFileKeys(w.file("keys"), rand.Reader, time.Now)
	if err != nil {
		return err
	}
	key, err := keys.Get(ctx, w.Burst)
	if err != nil {
		return err
	}
	m, err := f.Manifest(ctx, p.ManifestURL, p.ManifestSHA256, key, p.ManifestKey)
	if err == nil {
		err = f.Unlock(key, m)
	}
	if err == nil {
		err = f.Prefetch(ctx)
	}
	return err
}

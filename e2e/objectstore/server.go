package objectstore

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
	"github.com/versity/versitygw/s3api"
	"github.com/versity/versitygw/s3api/utils"
)

// Main is the child process: it reads a [Config] as JSON from stdin, serves
// until it is killed, and returns the exit status: 1 for a failure, 2 for
// wrong usage.
func Main(args []string) int {
	if len(args) > 0 {
		fmt.Fprintln(os.Stderr, "object store: takes no arguments, the configuration comes on stdin")
		return 2
	}
	var cfg Config
	if err := json.NewDecoder(os.Stdin).Decode(&cfg); err != nil {
		fmt.Fprintf(os.Stderr, "object store: read the configuration from stdin: %v\n", err)
		return 2
	}
	if err := serve(context.Background(), cfg); err != nil {
		fmt.Fprintf(os.Stderr, "object store: %v\n", err)
		return 1
	}
	return 0
}

func serve(ctx context.Context, cfg Config) error {
	log, err := openLog(cfg.AccessLog)
	if err != nil {
		return err
	}
	be, err := openBackend(cfg)
	if err != nil {
		return err
	}
	return embedgw.RunVersityGW(ctx, countingBackend{be}, &embedgw.Config{
		RootUserAccess:    cfg.AccessKey,
		RootUserSecret:    cfg.SecretKey,
		IAMService:        accounts(cfg),
		Region:            cfg.Region,
		Ports:             []string{cfg.Addr},
		MaxConnections:    4096,
		MaxRequests:       2048,
		MultipartMaxParts: 10_000,
		HealthPath:        cfg.Health,
		KeepAlive:         true,
		Quiet:             true,
		S3Options:         []s3api.Option{s3api.WithMiddleware("/", log.handle)},
	})
}

// openBackend keeps objects as plain files below Dir/objects and their
// metadata in extended attributes, or in Dir/meta where the file system has
// none.
func openBackend(cfg Config) (backend.Backend, error) {
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, err
	}
	objects, side, versions := filepath.Join(dir, "objects"), filepath.Join(dir, "meta"), filepath.Join(dir, "versions")
	for _, d := range []string{objects, side, versions} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
	}
	opts := posix.PosixOpts{CopyObjectThreshold: 5 << 30}
	if cfg.Versions {
		opts.VersioningDir = versions
	}
	var store meta.MetadataStorer = meta.XattrMeta{}
	if (meta.XattrMeta{}).Test(objects) != nil {
		opts.SideCarDir = side
		if store, err = meta.NewSideCar(side); err != nil {
			return nil, err
		}
	}
	be, err := posix.New(objects, store, opts)
	if err != nil {
		return nil, fmt.Errorf("open directory %s: %w", objects, err)
	}
	return be, nil
}

// staticAccounts are the accounts of a Config; nothing changes them.
type staticAccounts struct {
	auth.IAMService // the root account, and a refusal for every change
	users           map[string]auth.Account
}

func accounts(cfg Config) auth.IAMService {
	root := auth.Account{Access: cfg.AccessKey, Secret: cfg.SecretKey, Role: auth.RoleAdmin}
	s := staticAccounts{auth.NewIAMServiceSingle(root), map[string]auth.Account{}}
	for _, u := range cfg.Users {
		s.users[u.AccessKey] = auth.Account{Access: u.AccessKey, Secret: u.SecretKey, Role: auth.RoleUser}
	}
	return s
}

func (s staticAccounts) GetUserAccount(access string) (auth.Account, error) {
	if u, ok := s.users[access]; ok {
		return u, nil
	}
	return s.IAMService.GetUserAccount(access)
}

func (s staticAccounts) ResolveAccounts(keys []string) ([]string, error) {
	var unknown []string
	for _, k := range keys {
		if _, err := s.GetUserAccount(k); err != nil {
			unknown = append(unknown, k)
		}
	}
	return unknown, nil
}

// accessLog writes one line per request, after its body went out.
type accessLog struct {
	mu   sync.Mutex
	file *os.File // nil: no log
}

func openLog(path string) (*accessLog, error) {
	if path == "" {
		return &accessLog{}, nil
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("access log: %w", err)
	}
	return &accessLog{file: f}, nil
}

// logKey finds the open entry of a request.
type logKey struct{}

// openEntry is a request whose line is not written yet.
type openEntry struct {
	Entry
	log      *accessLog
	streamed bool // a body is sent by the server after the handler returned
}

func (l *accessLog) handle(ctx fiber.Ctx) error {
	path := strings.Clone(string(ctx.Request().RequestURI()))
	e := &openEntry{log: l, Entry: Entry{At: time.Now().UTC(), Method: strings.Clone(ctx.Method()), Path: path}}
	ctx.RequestCtx().SetUserValue(logKey{}, e)
	readChunked(ctx)
	err := ctx.Next()
	e.Bucket, e.Key, _ = strings.Cut(strings.TrimPrefix(strings.Clone(ctx.Path()), "/"), "/")
	if acct, ok := utils.ContextKeyAccount.Get(ctx).(auth.Account); ok {
		e.Requester = acct.Access
	}
	e.Status = ctx.Response().StatusCode()
	if e.streamed && ctx.Response().IsBodyStream() {
		return err // the body's Close writes the line
	}
	e.streamed = false
	if sendsBody(ctx.Method(), e.Status) && !ctx.Response().IsBodyStream() {
		e.BytesSent = int64(len(ctx.Response().Body()))
	}
	l.write(e.Entry)
	return err
}

// readChunked takes a body with Transfer-Encoding: chunked off the connection
// before anybody decides about it. versitygw v1.8.0 drains only bodies that
// have a Content-Length: of a chunked one it leaves what it does not need, all
// of it when it refuses the request, the end of it when the object is whole,
// and that would be parsed as the next request. cases: A5 seaweedfs#6703
func readChunked(ctx fiber.Ctx) {
	const chunked = -1
	if ctx.Request().IsBodyStream() && ctx.Request().Header.ContentLength() == chunked {
		body := bytes.Clone(ctx.Request().Body())
		ctx.Request().SetBodyStream(bytes.NewReader(body), chunked)
	}
}

// sendsBody says whether the server sends the body that a handler has set.
func sendsBody(method string, status int) bool {
	return method != fiber.MethodHead && status >= 200 && status != fiber.StatusNoContent && status != fiber.StatusNotModified
}

func (l *accessLog) write(e Entry) {
	if l.file == nil {
		return
	}
	line, err := json.Marshal(e)
	if err != nil {
		fmt.Fprintf(os.Stderr, "object store: access log: %v\n", err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.file.Write(append(line, '\n')); err != nil {
		fmt.Fprintf(os.Stderr, "object store: access log: %v\n", err)
	}
}

// countingBackend counts the bytes of object bodies as they are sent.
type countingBackend struct{ backend.Backend }

func (b countingBackend) GetObject(ctx context.Context, in *s3.GetObjectInput) (*s3.GetObjectOutput, error) {
	out, err := b.Backend.GetObject(ctx, in)
	e, ok := ctx.Value(logKey{}).(*openEntry)
	if err == nil && ok && out.Body != nil {
		e.streamed = true
		out.Body = &countedBody{ReadCloser: out.Body, entry: e}
	}
	return out, err
}

// countedBody writes the line of its request when the server closes it.
type countedBody struct {
	io.ReadCloser
	entry *openEntry
	once  sync.Once
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.entry.BytesSent += int64(n)
	return n, err
}

func (b *countedBody) Close() error {
	b.once.Do(func() {
		if b.entry.streamed && b.entry.Status != 0 {
			b.entry.log.write(b.entry.Entry)
		}
	})
	return b.ReadCloser.Close()
}

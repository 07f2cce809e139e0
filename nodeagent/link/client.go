package link

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

const (
	firstPause = 250 * time.Millisecond // after the first failure
	longPause  = 15 * time.Second       // the longest pause between two tries
	patience   = time.Second            // what a kick leaves a request to be answered: kicks never starve a lease
	maxReply   = 32 << 20               // bytes of one reply: a stage lists every object
)

// ClientConfig is what an agent's side of the link needs.
type ClientConfig struct {
	Controller   string         // host:port of the hub
	ControllerCA *x509.CertPool // signs the hub's certificate
	// Certificate returns the node's client certificate. It is asked for
	// every new connection, so a renewed certificate is taken up.
	Certificate func() (*tls.Certificate, error)
	// Report says all that is true now.
	Report func() Report
	// Heard is called with every reply, in order, never concurrently.
	Heard func(Heard)
	// Failed is called after each failed try with what went wrong and how
	// long the client waits. It may be nil.
	Failed func(err error, pause time.Duration)
	// Since is a monotonic clock, such as the time since boot.
	Since func() time.Duration
	// Wall is the node's wall clock.
	Wall func() time.Time
}

// Heard is a reply together with what the node knows about time.
type Heard struct {
	Reply Reply
	// Asked is the monotonic clock when the request left. The controller's
	// clock read Reply.Received at or after that moment; who counts a lease
	// from here on can only be early, whatever the network did.
	Asked time.Duration
	Clock Offset
}

// Client is the agent's side: one loop that reports and listens.
type Client struct {
	config ClientConfig
	http   *http.Client
	kick   chan struct{}
	rng    func(time.Duration) time.Duration // jitter

	hub     string
	version int64
	uploads string // digest of the list that the hub has
}

// NewClient returns a client that does nothing before Run.
func NewClient(config ClientConfig) *Client {
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{
			RootCAs:    config.ControllerCA,
			MinVersion: tls.VersionTLS13,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return config.Certificate()
			},
		},
		TLSHandshakeTimeout: 10 * time.Second,
		IdleConnTimeout:     time.Minute,
	}
	return &Client{
		config: config,
		http:   &http.Client{Transport: transport, Timeout: HoldFor + 15*time.Second},
		kick:   make(chan struct{}, 1),
		rng:    rand.N[time.Duration],
	}
}

// Kick makes the client report now instead of when its request comes back. It
// never blocks.
func (c *Client) Kick() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// Run reports and listens until ctx ends. Failures are tried again, with a
// pause that grows and is drawn at random, so that a thousand agents do not
// come back in the same moment.
func (c *Client) Run(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		err := c.Sync(ctx)
		if err == nil {
			failures = 0
			continue
		}
		if ctx.Err() != nil {
			return
		}
		failures++
		pause := c.pause(failures)
		if c.config.Failed != nil {
			c.config.Failed(err, pause)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// pause is drawn from the upper half of a doubling interval.
func (c *Client) pause(failures int) time.Duration {
	full := min(longPause, firstPause<<min(failures-1, 10))
	return full/2 + c.rng(full/2)
}

// Sync makes one exchange. A Kick while the hub holds the request ends it
// early without an error. It must not be called while Run runs.
func (c *Client) Sync(ctx context.Context) error {
	select {
	case <-c.kick: // this report carries whatever the kick was about
	default:
	}
	body, err := c.ask()
	if err != nil {
		return err
	}
	attempt, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		heard Heard
		err   error
	}
	done := make(chan result, 1)
	go func() {
		h, err := c.exchange(attempt, body)
		done <- result{h, err}
	}()
	var res result
	select {
	case res = <-done:
	case <-c.kick:
		c.Kick() // the next report carries it
		select {
		case res = <-done:
		case <-time.After(patience):
			cancel()
			if res = <-done; errors.Is(res.err, context.Canceled) && ctx.Err() == nil {
				return nil
			}
		}
	}
	if res.err != nil {
		return fmt.Errorf("sync with controller %s: %w", c.config.Controller, res.err)
	}
	c.hub, c.version, c.uploads = res.heard.Reply.Hub, res.heard.Reply.Version, res.heard.Reply.Uploads
	c.config.Heard(res.heard)
	return nil
}

// ask writes the body of a request. The uploads travel once, not every time.
func (c *Client) ask() ([]byte, error) {
	r := c.config.Report()
	if len(r.Uploads) > 0 {
		list, err := json.Marshal(r.Uploads)
		if err != nil {
			return nil, fmt.Errorf("write uploads: %w", err)
		}
		sum := sha256.Sum256(list)
		r.UploadsDigest = hex.EncodeToString(sum[:])
		if r.UploadsDigest == c.uploads {
			r.Uploads = nil
		}
	}
	body, err := json.Marshal(ask{Hub: c.hub, Seen: c.version, Report: r})
	if err != nil {
		return nil, fmt.Errorf("write report: %w", err)
	}
	return body, nil
}

// exchange posts the report and reads the reply.
func (c *Client) exchange(ctx context.Context, body []byte) (Heard, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+c.config.Controller+SyncPath, bytes.NewReader(body))
	if err != nil {
		return Heard{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	asked, sentAt := c.config.Since(), c.config.Wall()
	resp, err := c.http.Do(req)
	if err != nil {
		return Heard{}, err
	}
	defer resp.Body.Close() //nolint:errcheck // the body was read or is not wanted
	if resp.StatusCode != http.StatusOK {
		msg, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		return Heard{}, fmt.Errorf("refused with status %d: %s", resp.StatusCode, strings.TrimSpace(string(msg)))
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxReply+1))
	if err != nil {
		return Heard{}, fmt.Errorf("read reply: %w", err)
	}
	if len(data) > maxReply {
		return Heard{}, fmt.Errorf("reply is larger than %d bytes", maxReply)
	}
	h := Heard{Asked: asked}
	if err := json.Unmarshal(data, &h.Reply); err != nil {
		return Heard{}, fmt.Errorf("read reply: %w", err)
	}
	if h.Reply.Received.IsZero() || h.Reply.Sent.Before(h.Reply.Received) {
		return Heard{}, errors.New("reply lacks the controller's time")
	}
	h.Clock = offset(sentAt, c.config.Since()-asked, h.Reply)
	return h, nil
}

// offset compares the clocks as NTP does: both ways of the network are taken
// as equally long, and half of their sum is the error.
func offset(sentAt time.Time, took time.Duration, r Reply) Offset {
	network := max(0, took-r.Sent.Sub(r.Received))
	return Offset{Known: true, Ahead: sentAt.Add(network / 2).Sub(r.Received), Error: network / 2}
}

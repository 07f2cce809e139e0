// Package ec2 is the driver for clouds that speak Amazon's EC2 API: AWS and the
// AWS European Sovereign Cloud. The clouds differ by data (clouds.json), not by
// code.
//
// EC2 has a client token, and the law of tokens stands on it: every launch
// carries one that is made of the request's token, its type and its zone, so
// that a launch whose answer was lost is answered again and not done again.
// Create looks for the token's tag first, and sends one launch. No call is ever
// sent twice by this package or the SDK below it: a region without stock says
// so as a server error, which an SDK would repeat in vain.
//
// What is launched carries its whole mark as tags from the call that makes it:
// the instance, its volumes, its network interface. Volumes are encrypted and go
// with the instance, the guest's own shutdown terminates it, and its metadata
// service takes session tokens only. A list proves the absence of all three
// kinds. An empty list and an unknown id are believed only when the credential
// shows the subnets of the settings: another account's would show nothing.
//
// Vocabulary: a mark is what a thing of ours carries to be found again; a part
// is a volume or a network interface; a leftover is what carries a token
// without an instance that lives, and its id is its token, prefixed; an
// instance has ended when it has terminated, though EC2 shows it for another
// hour.
package ec2

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"

	"spillway.dev/spillway/providers"
)

// Config is one account in one region, and what its machines are made of.
type Config struct {
	Provider     string // name of the BurstProvider
	Region       string // in the cloud's own words
	Country      string // ISO 3166-1 alpha-2; a known region must lie there
	Installation string // on whose behalf

	// Endpoint of the API; empty means AWS's own for the region, which must be
	// a known one then.
	Endpoint string
	Login    Login
	// HTTP makes the calls. Nil means a client of its own with the TLS settings
	// of Login.
	HTTP *http.Client

	Image          string   // id, or name of an image that the account itself owns
	Subnets        []string // ids; the first one in a zone is where its machines are attached
	SecurityGroups []string // ids; none means the default group of the subnet's network
	PublicAddress  bool     // machines get a public address, which the cloud bills
	DiskGiB        int      // of the root volume; 0: 200, and never less than the image has

	// GPUs by instance type are the operator's own statements; they win over
	// what the cloud says. A count of 0 keeps a type out.
	GPUs map[string]GPU
}

// defaultDiskGiB holds an operating system with drivers and some large images.
const defaultDiskGiB = 200

// shownFor is how long EC2 shows an instance that has terminated, about.
const shownFor = time.Hour

// Login is a key of an account.
type Login struct {
	AccessKey, SecretKey, SessionToken string
	TLS                                *tls.Config // nil: the system's own
}

// Driver implements [providers.Driver] and [providers.UsageReporter].
type Driver struct {
	config Config
	meter  providers.MeterRule
	api    calls

	opening chan struct{} // one look at the account at a time; a waiting caller can leave
	open    *account      // nil: not looked at yet
	turns   [64]chan struct{}

	made   *recent[struct{}]  // by instance id: what lists may not show yet
	stamps *recent[time.Time] // by instance id: what tags may not show yet
	empty  *recent[struct{}]  // by type and zone: what was found without stock
	over   *recent[struct{}]  // by instance id: failed launches whose end was asked for
}

// New returns the driver of one account. It makes no call.
func New(config Config) (*Driver, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	meter, err := meterOf(config)
	if err != nil {
		return nil, err
	}
	client := config.HTTP
	if client == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.TLSClientConfig = config.Login.TLS
		client = &http.Client{Transport: transport}
	}
	options := sdk.Options{
		Region: config.Region, HTTPClient: client, Retryer: aws.NopRetryer{},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{
				AccessKeyID: config.Login.AccessKey, SecretAccessKey: config.Login.SecretKey, SessionToken: config.Login.SessionToken,
			}, nil
		}),
	}
	if config.Endpoint != "" {
		options.BaseEndpoint = aws.String(config.Endpoint)
	}
	d := &Driver{
		config: config, meter: meter, api: newCalls(options), opening: make(chan struct{}, 1),
		made: newRecent[struct{}](providers.ListDelay), stamps: newRecent[time.Time](providers.ListDelay),
		empty: newRecent[struct{}](emptyFor), over: newRecent[struct{}](2 * shownFor),
	}
	for i := range d.turns {
		d.turns[i] = make(chan struct{}, 1)
	}
	return d, nil
}

var (
	_ providers.Driver        = (*Driver)(nil)
	_ providers.UsageReporter = (*Driver)(nil)
)

// check names everything that is missing, at once.
func (c *Config) check() error {
	var wrong []error
	for _, f := range []struct{ name, value string }{
		{"provider", c.Provider},
		{"region", c.Region},
		{"installation", c.Installation},
		{"image", c.Image},
		{"subnets", strings.Join(c.Subnets, "")},
		{keyAccess, c.Login.AccessKey},
		{keySecret, c.Login.SecretKey},
	} {
		if f.value == "" {
			wrong = append(wrong, fmt.Errorf("ec2: %s is not set", f.name))
		}
	}
	for what, ids := range map[string][]string{"subnet-": c.Subnets, "sg-": c.SecurityGroups} {
		for _, id := range ids {
			if !strings.HasPrefix(id, what) {
				wrong = append(wrong, fmt.Errorf("ec2: %q is no id: write one that begins with %s", id, what))
			}
		}
	}
	return errors.Join(wrong...)
}

// turn lets one caller at a time move a machine's stamp, as that is a look and
// then a call. Some machines share a turn.
func (d *Driver) turn(ctx context.Context, id string) (done func(), err error) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id))
	slot := d.turns[h.Sum32()%uint32(len(d.turns))]
	select {
	case slot <- struct{}{}:
		return func() { <-slot }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

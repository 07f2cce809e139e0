// Package openstack is the driver for clouds that speak OpenStack: Keystone,
// Nova, Neutron and Glance. The clouds differ by data (clouds.json), not by
// code.
//
// OpenStack has no client token, so the law of tokens is kept by marks: every
// server carries its whole mark as metadata from the call that makes it, and
// every port and floating address in its description. Create looks for the
// token first, adopts what it finds, makes the port before the server, looks
// again afterwards and removes duplicates. No call is ever sent twice by this
// package or the library below it, but after a 401, which says that nothing
// was done.
//
// A server that Nova has accepted may still find no host: it turns up in List
// as failed, and the words of its fault decide whether that means sold out.
// Powering off does not stop the bill.
//
// Vocabulary: a mark is what a thing of ours carries to be found again; a part
// is a port or a floating address; a leftover is what carries a token without a
// server, and its id is its token, prefixed; a holding is all that an account
// shows of us at one moment.
package openstack

import (
	"crypto/tls"
	"net/http"
	"sync"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"spillway.dev/spillway/providers"
)

// Config is one account in one region of one cloud, and what its machines are
// made of.
type Config struct {
	Provider     string // name of the BurstProvider
	Region       string // in the cloud's own words
	Country      string // ISO 3166-1 alpha-2
	Installation string // on whose behalf

	Login Login
	// HTTP makes the calls. Nil, or one without a transport, means a client of
	// its own with the TLS settings of Login.
	HTTP *http.Client

	Image          string   // name or id; one that is not unique by name is refused
	Network        string   // name or id of the network that machines are attached to
	SecurityGroups []string // names or ids; none means the project's default group
	Addresses      string   // name or id of the network for floating addresses; empty: machines get none

	// GPUs by flavor are the operator's own statements; they win over
	// everything that the cloud says. A count of 0 keeps a flavor out.
	GPUs map[string]GPU
}

// Login is an account as a clouds.yaml states it.
type Login struct {
	Auth     gophercloud.AuthOptions
	Endpoint gophercloud.EndpointOpts
	TLS      *tls.Config
}

// Driver implements [providers.Driver] and [providers.UsageReporter].
type Driver struct {
	config Config
	cloud  cloud // what is known about this cloud
	http   *http.Client

	opening chan struct{} // one login at a time; a waiting caller can leave
	open    *session      // nil: not logged in yet
	tokens  turns         // one Create a token
	ids     turns         // one Extend a machine

	mu   sync.Mutex
	made map[string]bought // by token: what the list may not show yet
}

// bought is a server that this process has made.
type bought struct {
	id string
	at time.Time
}

// New returns the driver of one account. It makes no call.
func New(config Config) (*Driver, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	known, err := knownCloud(config.Login.Auth.IdentityEndpoint)
	if err != nil {
		return nil, err
	}
	d := &Driver{
		config: config, cloud: known, http: config.HTTP,
		opening: make(chan struct{}, 1), made: map[string]bought{},
	}
	if d.http == nil || d.http.Transport == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.TLSClientConfig = config.Login.TLS
		d.http = &http.Client{Transport: transport}
	}
	return d, nil
}

var (
	_ providers.Driver        = (*Driver)(nil)
	_ providers.UsageReporter = (*Driver)(nil)
)

// remember keeps the id of a new server for as long as lists may lag.
func (d *Driver) remember(token, id string, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for t, b := range d.made {
		if now.Sub(b.at) > 2*providers.ListDelay {
			delete(d.made, t)
		}
	}
	d.made[token] = bought{id, now}
}

// recall returns the id of a server that this process has made for the token
// not long ago, or "".
func (d *Driver) recall(token string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.made[token].id
}

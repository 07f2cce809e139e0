package openstack

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"

	"spillway.dev/spillway/providers"
)

// mark is what a thing of ours carries to be found again, also by a sweeper
// that knows nothing but the cloud.
type mark struct {
	installation, token, burst, tenant, kind string
	expires                                  time.Time
}

// The keys of a server's metadata. Nova takes letters, digits and "-_:. "; the
// dash alone is good everywhere.
// cases: D-45 karpenter-provider-aws#1527
const (
	keyInstallation = "spillway-installation"
	keyToken        = "spillway-token"
	keyBurst        = "spillway-burst"
	keyTenant       = "spillway-tenant"
	keyExpires      = "spillway-expires" // RFC 3339, UTC
	keyType         = "spillway-type"    // flavor by name: newer APIs don't tell its id (cases: D-31)
)

// maxText is the longest value of metadata, and the longest description.
const maxText = 255

func markOf(req providers.Request) mark {
	return mark{req.Installation, req.Token, req.Burst, req.Tenant, req.Offer.InstanceType, req.Expires}
}

// metadata is the mark of a server.
func (m mark) metadata() map[string]string {
	return map[string]string{
		keyInstallation: m.installation, keyToken: m.token, keyBurst: m.burst,
		keyTenant: m.tenant, keyType: m.kind, keyExpires: providers.Stamp(m.expires),
	}
}

// readMetadata is the mark of a server, and whether it is one of ours at all.
func readMetadata(data map[string]string) (mark, bool) {
	m := mark{
		installation: data[keyInstallation], token: data[keyToken], burst: data[keyBurst],
		tenant: data[keyTenant], kind: data[keyType], expires: providers.ReadStamp(data[keyExpires]),
	}
	return m, m.installation != "" && m.token != ""
}

// description begins the description of a part.
const description = "spillway:"

// text is the mark of a part, in its description: the one text that every
// network service stores in the call that makes the part.
func (m mark) text() string {
	return description + url.Values{
		"i": {m.installation}, "t": {m.token}, "b": {m.burst}, "o": {m.tenant}, "k": {m.kind}, "e": {providers.Stamp(m.expires)},
	}.Encode()
}

// readText is the mark of a part, and whether it is one of ours at all.
func readText(s string) (mark, bool) {
	rest, ours := strings.CutPrefix(s, description)
	v, err := url.ParseQuery(rest)
	if !ours || err != nil {
		return mark{}, false
	}
	m := mark{v.Get("i"), v.Get("t"), v.Get("b"), v.Get("o"), v.Get("k"), providers.ReadStamp(v.Get("e"))}
	return m, m.installation != "" && m.token != ""
}

// checkMark refuses what a mark could not carry.
func checkMark(req providers.Request) error {
	if err := req.Check(); err != nil {
		return err
	}
	if n := len(markOf(req).text()); n > maxText {
		return fmt.Errorf("installation, burst, tenant and type are too long to mark a port with: %d characters, at most %d", n, maxText)
	}
	return nil
}

// leftover begins the id of a machine of which no server is left.
const leftover = "leftover:"

// exactly is a pattern that matches one name only: Nova reads names as regular
// expressions. cases: D-17 kubernetes/kops#6650
func exactly(name string) string { return "^" + regexp.QuoteMeta(name) + "$" }

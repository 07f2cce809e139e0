package ec2

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"spillway.dev/spillway/providers"
)

// mark is what a thing of ours carries to be found again, also by a sweeper
// that knows nothing but the cloud.
type mark struct {
	installation, token, burst, tenant, name, kind string
	expires                                        time.Time
	ended                                          bool
}

// The keys of tags. No slash: EC2 refuses it where a guest may read its tags.
// cases: D-45 karpenter-provider-aws#1527
const (
	keyInstallation = "spillway-installation"
	keyToken        = "spillway-token"
	keyBurst        = "spillway-burst"
	keyTenant       = "spillway-tenant"
	keyExpires      = "spillway-expires" // RFC 3339, UTC
	keyType         = "spillway-type"    // instance type, for parts that have lost their instance
	keyEnded        = "spillway-ended"   // on an instance that failed and whose end was asked for
	keyName         = "Name"             // as the cloud's console shows it
)

// maxTag is the longest value of a tag.
const maxTag = 256

func markOf(req providers.Request) mark {
	return mark{
		installation: req.Installation, token: req.Token, burst: req.Burst, tenant: req.Tenant, name: req.Name,
		kind: req.Offer.InstanceType, expires: req.Expires,
	}
}

// tags is the mark as it is written: in one order, as a client token covers it.
func (m mark) tags() []types.Tag {
	return []types.Tag{
		tag(keyName, m.name), tag(keyInstallation, m.installation), tag(keyToken, m.token), tag(keyBurst, m.burst),
		tag(keyTenant, m.tenant), tag(keyType, m.kind), tag(keyExpires, providers.Stamp(m.expires)),
	}
}

func tag(key, value string) types.Tag {
	return types.Tag{Key: aws.String(key), Value: aws.String(value)}
}

// readTags is the mark of a thing, and whether it is one of ours at all.
func readTags(all []types.Tag) (mark, bool) {
	data := map[string]string{}
	for _, t := range all {
		data[aws.ToString(t.Key)] = aws.ToString(t.Value)
	}
	m := mark{
		installation: data[keyInstallation], token: data[keyToken], burst: data[keyBurst], tenant: data[keyTenant],
		name: data[keyName], kind: data[keyType], expires: providers.ReadStamp(data[keyExpires]), ended: data[keyEnded] != "",
	}
	return m, m.installation != "" && m.token != ""
}

// checkMark refuses what a mark could not carry.
func checkMark(req providers.Request) error {
	if err := req.Check(); err != nil {
		return err
	}
	for _, t := range markOf(req).tags() {
		if len(*t.Value) > maxTag {
			return fmt.Errorf("tag %s of %d characters: EC2 takes at most %d", *t.Key, len(*t.Value), maxTag)
		}
	}
	return nil
}

// clientToken names a launch to EC2. It covers type and zone: with another type,
// EC2 would refuse the token as used for something else.
// cases: D-36 ubicloud PR#5898, runs-on#251
func clientToken(req providers.Request) string {
	parts := []string{req.Installation, req.Token, req.Offer.InstanceType, req.Offer.Zone}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:]) // 64 characters, the most there may be
}

// leftover begins the id of a machine of which no instance lives.
const leftover = "leftover:"

// tagged is a filter for one value of a tag: EC2 reads values as patterns.
// cases: D-17 kubernetes/kops#6650
func tagged(key, value string) types.Filter {
	return types.Filter{Name: aws.String("tag:" + key), Values: []string{exactly(value)}}
}

// exactly is a pattern that matches one text only.
func exactly(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`).Replace(text)
}

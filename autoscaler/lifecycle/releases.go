package lifecycle

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/nodeagent/link"
)

// maxReleases is how many agent processes of one boot of a machine get the
// data key: the first, and three that came after it. One that dies more often
// is broken, or is not what it says.
const maxReleases = 4

// release is one line of the record of releases: an agent process that the
// data key was sealed to, or refused.
type release struct {
	At      time.Time `json:"at"`
	Boot    string    `json:"boot"`
	To      string    `json:"to"` // hex SHA-256 of the agent process's public key
	Refused bool      `json:"refused,omitempty"`
}

func releasesName(node string) string { return "releases-" + node + ".json" }

// mayRelease says whether the data key may be sealed to this agent process and
// records it before it is. The same process may be told again at any time. A
// refusal is an error once; after that it is just no.
func (s *Stager) mayRelease(b *v1alpha1.Burst, r link.Report) (bool, error) {
	burst, name := string(b.UID), releasesName(r.Node)
	var all []release
	data, err := s.Records.Load(burst, name)
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("record of key releases: %w", err)
	}
	sum := sha256.Sum256(r.HPKE)
	to, had := hex.EncodeToString(sum[:]), 0
	for _, old := range all {
		switch {
		case old.Boot != r.BootID:
		case old.To == to:
			return !old.Refused, nil
		case !old.Refused:
			had++
		}
	}
	fresh := release{At: s.Now().UTC(), Boot: r.BootID, To: to, Refused: had >= maxReleases}
	if data, err = json.Marshal(append(all, fresh)); err != nil {
		return false, fmt.Errorf("record of key releases: %w", err)
	}
	if err := s.Records.Keep(burst, name, data); err != nil {
		return false, err
	}
	if fresh.Refused {
		return false, fmt.Errorf("%d agent processes of this boot had the data key already, so this one gets none: its agent dies again and again: read its log on the node, or end the burst", had)
	}
	return true, nil
}

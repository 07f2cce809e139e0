package seal

import "encoding/binary"

// Direction says on which side of a burst a message belongs, so that none can
// stand in for another.
type Direction string

// The directions in use.
const (
	// In is an input, sealed at home for the staging store.
	In Direction = "in"
	// Cache is an input that the node itself sealed to its own disk.
	Cache Direction = "cache"
	// Out is a result or a log on its way home.
	Out Direction = "out"
	// List is the manifest of a burst.
	List Direction = "list"
)

// Context is what a message is. Sealing and opening must name the same.
type Context struct {
	Burst     string // UID of the burst
	Direction Direction
	Bucket    string // source bucket
	Key       string // source key, bytes as they are
	Version   string // source version id, empty without versions
	ETag      string // source ETag without quotes
}

// Bytes is the encoding that is bound into the key: every field with its
// length in front, so that no two contexts share an encoding.
func (c Context) Bytes() []byte {
	return encodeFields("spillway.dev/context@v1", c.Burst, string(c.Direction), c.Bucket, c.Key, c.Version, c.ETag)
}

// encodeFields joins fields, each behind its length as 8 big-endian bytes.
func encodeFields(fields ...string) []byte {
	var out []byte
	for _, f := range fields {
		out = binary.BigEndian.AppendUint64(out, uint64(len(f)))
		out = append(out, f...)
	}
	return out
}

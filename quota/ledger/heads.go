package ledger

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Head names a state of a journal: everything up to one row. As each row's hash
// covers the row before, one hash stands for all of them. A journal can be
// written anew with a chain that fits; heads that somebody else has kept say so.
type Head struct {
	Rows int64     `json:"rows"` // number of the last row
	Hash string    `json:"hash"` // its hash, in hex
	At   time.Time `json:"at"`   // its record time
}

// SignedHead is a head that the holder of a key has seen.
type SignedHead struct {
	Head
	Signature []byte `json:"signature"` // ed25519
}

// ErrHead says that a signed head can't be trusted.
var ErrHead = errors.New("not a trusted head")

// headPurpose opens what is signed, so that no signature means anything else.
const headPurpose = "spillway ledger head v1\n"

// message is what is signed.
func (h Head) message() []byte {
	return fmt.Appendf(nil, "%s%d\n%s\n%s\n", headPurpose, h.Rows, h.Hash, h.At.UTC().Format(time.RFC3339Nano))
}

// SignHead signs h.
func SignHead(key ed25519.PrivateKey, h Head) SignedHead {
	return SignedHead{Head: h, Signature: ed25519.Sign(key, h.message())}
}

// ReadHeads reads signed heads, one JSON object a line, as they were kept. Every
// one must carry a signature of the trusted key, or it is [ErrHead]: who reads
// history can't pick what to believe. An empty file is too: it proves nothing.
func ReadHeads(from io.Reader, trusted ed25519.PublicKey) ([]Head, error) {
	var heads []Head
	for in := json.NewDecoder(from); ; {
		var h SignedHead
		switch err := in.Decode(&h); {
		case errors.Is(err, io.EOF) && len(heads) > 0:
			return heads, nil
		case errors.Is(err, io.EOF):
			return nil, fmt.Errorf("%w: there is none in it", ErrHead)
		case err != nil:
			return nil, fmt.Errorf("%w: head %d can't be read: %w", ErrHead, len(heads)+1, err)
		case h.Rows < 1 || !ed25519.Verify(trusted, h.message(), h.Signature):
			return nil, fmt.Errorf("%w: head %d, of row %d, is not signed by the trusted key", ErrHead, len(heads)+1, h.Rows)
		}
		heads = append(heads, h.Head)
	}
}

// Newest is the head of the journal as it is now.
func (s State) Newest() Head { return Head{Rows: s.Rows, Hash: s.Head, At: s.Last} }

// expect notes the heads that the journal has to pass.
func (v *verifier) expect(heads []Head) {
	for _, h := range heads {
		v.heads[h.Rows] = append(v.heads[h.Rows], h)
		v.report.Heads++
		v.report.Covered = max(v.report.Covered, h.Rows)
	}
}

// passed compares the row that was just read with the heads of it.
func (v *verifier) passed(r *row) {
	for _, h := range v.heads[r.seq] {
		if h.Hash != fmt.Sprintf("%x", r.hash) {
			v.found(r.seq, "it is not the row whose head was signed on %s: the journal was written anew up to here", h.At.Format(time.RFC3339))
		}
	}
	delete(v.heads, r.seq)
}

// missed finds heads of rows that are not there any more.
func (v *verifier) missed() {
	for rows, heads := range v.heads {
		v.found(0, "the journal ends at row %d, and a head of row %d was signed on %s: rows at the end are missing", v.seq, rows, heads[0].At.Format(time.RFC3339))
	}
}

// Package canary looks for cleartext where only ciphertext may lie: it counts
// known strings in a directory tree, in every form that a program may have
// left them in.
//
// A canary is a long random-looking string that tests and the demo put into
// their inputs. The search finds it raw, in base64 (standard and URL alphabet,
// at all three alignments), in hex, inside gzip members, and split over two
// files, such as chunks of one object, in whatever order they are named.
//
// A search that finds nothing proves something only when the same search has
// found everything with the sealing switched off: run that positive control.
package canary

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Report is what a search found.
type Report struct {
	Files int   `json:"files"` // regular files read
	Bytes int64 `json:"bytes"` // bytes read
	Found []Hit `json:"found,omitempty"`
}

// Hit is one canary in one file.
type Hit struct {
	File   string `json:"file"`
	Canary int    `json:"canary"` // index in the list that was searched for
	Form   string `json:"form"`   // raw, base64, hex, gzip, split
}

// CleartextBytes is the sum of the lengths of the canaries found.
func (r Report) CleartextBytes(canaries []string) int64 {
	n := int64(0)
	for _, h := range r.Found {
		n += int64(len(canaries[h.Canary]))
	}
	return n
}

// shortest is the least length of a part of a canary that counts as found:
// long enough that no ciphertext holds it by chance.
const shortest = 16

// biggestMember bounds what is unpacked from one gzip member.
const biggestMember = 1 << 30

// Search reads every regular file below root. A file that can't be read is an
// error, never a silent gap; one that goes away meanwhile is fs.ErrNotExist.
func Search(root string, canaries []string) (Report, error) {
	var r Report
	for i, c := range canaries {
		if len(c) < 2*shortest {
			return r, fmt.Errorf("canary %d has %d bytes; fewer than %d prove nothing", i, len(c), 2*shortest)
		}
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		r.Files++
		r.Bytes += int64(len(data))
		for i, c := range canaries {
			for _, form := range forms(data, c) {
				r.Found = append(r.Found, Hit{File: path, Canary: i, Form: form})
			}
		}
		return nil
	})
	if err != nil {
		return r, fmt.Errorf("search %s: %w", root, err)
	}
	return r, nil
}

// forms names every form in which a canary stands in data.
func forms(data []byte, canary string) []string {
	var found []string
	for _, form := range []struct {
		name string
		in   bool
	}{
		{"raw", bytes.Contains(data, []byte(canary))},
		{"base64", anyOf(data, inBase64(canary))},
		{"hex", anyOf(data, []string{hex.EncodeToString([]byte(canary)), strings.ToUpper(hex.EncodeToString([]byte(canary)))})},
		{"gzip", inGzip(data, canary)},
		{"split", atBorder(data, canary)},
	} {
		if form.in {
			found = append(found, form.name)
		}
	}
	return found
}

func anyOf(data []byte, needles []string) bool {
	for _, n := range needles {
		if bytes.Contains(data, []byte(n)) {
			return true
		}
	}
	return false
}

// inBase64 is the canary as it stands in encoded text, at each of the three
// places where it can begin in a group of three bytes. Characters that depend
// on the neighbours are left out.
func inBase64(canary string) []string {
	var out []string
	for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
		for before := range 3 {
			text := enc.EncodeToString([]byte(strings.Repeat("\x00", before) + canary))
			from := []int{0, 2, 3}[before]
			whole := (before + len(canary)) / 3 * 4 // groups without bytes from behind
			out = append(out, text[from:whole])
		}
	}
	return out
}

// inGzip unpacks whatever looks like a gzip member and looks into it. A member
// that is cut off is searched as far as it goes.
func inGzip(data []byte, canary string) bool {
	magic := []byte{0x1f, 0x8b, 0x08}
	for at := 0; ; {
		next := bytes.Index(data[at:], magic)
		if next < 0 {
			return false
		}
		at += next
		if z, err := gzip.NewReader(bytes.NewReader(data[at:])); err == nil {
			plain, _ := io.ReadAll(io.LimitReader(z, biggestMember)) // cut off: what there is
			if bytes.Contains(plain, []byte(canary)) {
				return true
			}
		}
		at += len(magic)
	}
}

// atBorder reports whether the file ends in the beginning of a canary, or
// begins with its end.
func atBorder(data []byte, canary string) bool {
	for k := shortest; k < len(canary); k++ {
		if bytes.HasSuffix(data, []byte(canary[:k])) || bytes.HasPrefix(data, []byte(canary[k-shortest+1:])) && len(canary)-(k-shortest+1) >= shortest {
			return true
		}
	}
	return false
}

// Package canary looks for cleartext where only ciphertext may lie: it counts
// known strings in a directory tree, in every form that a program may have
// left them in.
//
// A canary is a long random-looking string that tests and the demo put into
// their inputs. The search finds it raw, in base64 (standard and URL alphabet,
// at all three alignments), in hex of either case, inside gzip members, and
// split: its two ends in different files, or at both sides of a border within
// a file, as chunking leaves them.
//
// A search that finds nothing proves something only when the same search has
// found everything with the sealing switched off: run that positive control.
package canary

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// MinLength is the shortest canary in bytes: half of it has to be telling on
// its own.
const MinLength = 32

// Report is what a search found.
type Report struct {
	Files int   `json:"files"` // regular files read
	Bytes int64 `json:"bytes"` // bytes read
	Found []Hit `json:"found,omitempty"`
}

// Hit is one canary in one file in one form.
type Hit struct {
	File   string `json:"file"`
	Canary int    `json:"canary"` // index in the list that was searched for
	Form   string `json:"form"`   // raw, base64, hex, split; with "gzip " in front inside a gzip member
}

// CleartextBytes is how many bytes of the canaries lie there in any form; of
// one that is split, the half that gave it away counts.
func (r Report) CleartextBytes(canaries []string) int64 {
	var n int64
	for _, h := range r.Found {
		length := len(canaries[h.Canary])
		if strings.HasSuffix(h.Form, "split") {
			length /= 2
		}
		n += int64(length)
	}
	return n
}

// Search reads every regular file below root and the names of all. A file
// that can't be read is an error, never a silent gap. Canaries shorter than
// [MinLength] are refused.
func Search(root string, canaries []string) (Report, error) {
	var s searcher
	for i, c := range canaries {
		if len(c) < MinLength {
			return Report{}, fmt.Errorf("canary %d has %d bytes: take at least %d", i, len(c), MinLength)
		}
		s.needles = append(s.needles, formsOf(i, c)...)
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		s.scan(path, []byte(path), "name ")
		if !d.Type().IsRegular() {
			return nil
		}
		s.report.Files++
		return s.search(path)
	})
	if err != nil {
		return Report{}, fmt.Errorf("search for cleartext: %w", err)
	}
	return s.report, nil
}

// needle is one form of one canary.
type needle struct {
	canary int
	form   string
	text   []byte
}

// formsOf lists all forms of a canary. The halves stand for a split: whatever
// the border, one side holds at least half.
func formsOf(i int, c string) []needle {
	all := []needle{
		{i, "raw", []byte(c)},
		{i, "hex", []byte(hex.EncodeToString([]byte(c)))},
		{i, "hex", []byte(strings.ToUpper(hex.EncodeToString([]byte(c))))},
	}
	half := len(c) / 2
	all = append(all, needle{i, "split", []byte(c[:half])}, needle{i, "split", []byte(c[len(c)-half:])})
	for shift := range 3 {
		// Encode behind so many other bytes, and keep what does not depend
		// on the neighbours.
		for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			text := enc.EncodeToString(append(make([]byte, shift), c...))
			skip := (shift*8 + 5) / 6
			whole := (shift + len(c)) * 8 / 6
			all = append(all, needle{i, "base64", []byte(text[skip:whole])})
		}
	}
	return all
}

type searcher struct {
	needles []needle
	report  Report
}

// search looks into one file, extent by extent: a disk image is mostly holes,
// which hold nothing.
func (s *searcher) search(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	for at := int64(0); ; {
		begin, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // nothing but a hole is left
		}
		if err != nil {
			return err
		}
		if at, err = f.Seek(begin, unix.SEEK_HOLE); err != nil {
			return err
		}
		data := make([]byte, at-begin)
		n, err := f.ReadAt(data, begin)
		if err != nil && !errors.Is(err, io.EOF) { // it may have become shorter
			return err
		}
		s.report.Bytes += int64(n)
		s.scan(path, data[:n], "")
		if err := s.unzip(path, data[:n]); err != nil {
			return err
		}
	}
}

// scan records what a piece of data holds. A half is not counted where the
// whole is.
func (s *searcher) scan(path string, data []byte, within string) {
	whole := map[int]bool{}
	seen := map[string]bool{}
	for _, n := range s.needles {
		if n.form == "split" && whole[n.canary] {
			continue
		}
		key := fmt.Sprint(n.canary, n.form)
		if seen[key] || !bytes.Contains(data, n.text) {
			continue
		}
		seen[key] = true
		whole[n.canary] = whole[n.canary] || n.form == "raw"
		s.report.Found = append(s.report.Found, Hit{File: path, Canary: n.canary, Form: within + n.form})
	}
}

// maxUnzipped bounds what one gzip member may grow to.
const maxUnzipped = 256 << 20

// unzip searches every gzip member in data, wherever it begins.
func (s *searcher) unzip(path string, data []byte) error {
	magic := []byte{0x1f, 0x8b, 8}
	for at := 0; ; at++ {
		next := bytes.Index(data[at:], magic)
		if next < 0 {
			return nil
		}
		at += next
		z, err := gzip.NewReader(bytes.NewReader(data[at:]))
		if err != nil {
			continue // three bytes that only look like one
		}
		// A member that is cut or damaged is searched as far as it reads.
		plain, _ := io.ReadAll(io.LimitReader(z, maxUnzipped+1))
		if len(plain) > maxUnzipped {
			return fmt.Errorf("%s: a gzip member grows beyond %d bytes", path, maxUnzipped)
		}
		s.scan(path, plain, "gzip ")
	}
}

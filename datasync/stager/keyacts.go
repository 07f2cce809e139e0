package stager

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// KeyAct is one line of the audit record of keys. It names bursts and key
// services, never a key.
type KeyAct struct {
	At      time.Time `json:"at"`
	Act     string    `json:"act"` // made, rotated, destroying, destroyed
	Burst   string    `json:"burst"`
	By      string    `json:"by"` // the controller, or the id of a person
	Reason  string    `json:"reason,omitempty"`
	Outcome string    `json:"outcome,omitempty"` // of a destruction: destroyed, or deleted, unproven
	Prev    string    `json:"prev"`              // hex SHA-256 of the line before, empty for the first
}

const actsFile = "acts.jsonl"

// note appends an act to the audit record, durably. Each line holds the hash
// of the one before, so that none goes missing from the middle unseen.
func (c *Custody) note(burst, act, outcome string) error {
	a := KeyAct{At: c.cfg.Now().UTC(), Act: act, Burst: burst, By: c.cfg.By, Reason: c.cfg.Reason, Outcome: outcome}
	if err := c.append(a); err != nil {
		return fmt.Errorf("audit record of keys: %w", err)
	}
	return nil
}

func (c *Custody) append(a KeyAct) error {
	unlock, err := c.dir.lock("acts")
	if err != nil {
		return err
	}
	defer unlock()
	lines, end, err := c.lines()
	if err != nil {
		return err
	}
	if len(lines) > 0 {
		a.Prev = lineHash(lines[len(lines)-1])
	}
	line, err := json.Marshal(a)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(c.dir.file(actsFile), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = f.Truncate(end) // what a crash left of a line that was never told
	if err == nil {
		_, err = f.WriteAt(append(line, '\n'), end)
	}
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return c.dir.sync()
}

// Acts returns the audit record of keys, oldest first. An error says that a
// line was changed or is missing.
func (c *Custody) Acts() ([]KeyAct, error) {
	lines, _, err := c.lines()
	if err != nil {
		return nil, fmt.Errorf("audit record of keys: %w", err)
	}
	acts := make([]KeyAct, 0, len(lines))
	prev := ""
	for i, line := range lines {
		var a KeyAct
		if err := json.Unmarshal(line, &a); err != nil {
			return acts, fmt.Errorf("audit record of keys %s: line %d is damaged: %w", c.dir.file(actsFile), i+1, err)
		}
		if a.Prev != prev {
			return acts, fmt.Errorf("audit record of keys %s: line %d does not follow the one before: a line was changed or is missing", c.dir.file(actsFile), i+1)
		}
		acts, prev = append(acts, a), lineHash(line)
	}
	return acts, nil
}

// lines returns the whole lines and where the last of them ends.
func (c *Custody) lines() (lines [][]byte, end int64, err error) {
	data, err := c.dir.read(actsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	for line := range bytes.Lines(data) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		lines, end = append(lines, bytes.TrimSuffix(line, []byte("\n"))), end+int64(len(line))
	}
	return lines, end, nil
}

func lineHash(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:])
}

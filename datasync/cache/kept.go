package cache

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"spillway.dev/spillway/datasync/seal"
)

// change is one entry of the journal: an object that came to be, or is gone.
type change struct {
	Gone   bool   `json:"gone,omitempty"`
	Upload Upload `json:"upload"`
}

// maxChange bounds one sealed entry: 10,000 parts have about 1 MiB.
const maxChange = 16 << 20

// kept is the journal on the disk: each change sealed under the data key, with
// its length in front and its number in the context. It outlives a kill of the
// process. It is not synced: after a crash of the machine the node gets no key
// any more, and nobody could read it.
type kept struct {
	file   *os.File
	burst  string
	key    seal.DataKey
	random io.Reader
	next   int64 // number of the next change
	size   int64
}

// openKept opens the file and returns the changes in it, up to the first that
// is cut off or damaged, where the file then ends.
func openKept(path, burst string, key seal.DataKey, random io.Reader) (*kept, []change, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("open the list of results: %w", err)
	}
	k := &kept{file: file, burst: burst, key: key, random: random}
	var all []change
	for in := bufio.NewReader(file); ; {
		c, n, err := k.read(in)
		if errors.Is(err, io.EOF) {
			return k, all, nil
		}
		if err != nil {
			err = errors.Join(err, file.Truncate(k.size))
			return k, all, fmt.Errorf("read the list of results: entry %d: %w", k.next, err)
		}
		all = append(all, c)
		k.next++
		k.size += n
	}
}

// read opens the next entry and returns its length in the file.
func (k *kept) read(in io.Reader) (change, int64, error) {
	var head [4]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return change{}, 0, err
	}
	n := int64(binary.BigEndian.Uint32(head[:]))
	if n > maxChange {
		return change{}, 0, seal.ErrDamaged
	}
	plain, err := io.ReadAll(seal.NewOpener(io.LimitReader(in, n), k.key, k.context()))
	if err != nil {
		return change{}, 0, err
	}
	var c change
	err = json.Unmarshal(plain, &c)
	return c, n + int64(len(head)), err
}

func (k *kept) context() seal.Context {
	return seal.Context{Burst: k.burst, Direction: seal.Cache, Key: "results", Version: strconv.FormatInt(k.next, 10)}
}

// add writes one change behind the last whole one.
func (k *kept) add(c change) error {
	plain, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("keep a result: %w", err)
	}
	var out bytes.Buffer
	out.Write(binary.BigEndian.AppendUint32(nil, uint32(seal.Size(int64(len(plain))))))
	w, err := seal.NewWriter(&out, k.key, k.context(), k.random)
	if err == nil {
		_, err = w.Write(plain)
	}
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		_, err = k.file.WriteAt(out.Bytes(), k.size)
	}
	if err != nil {
		return fmt.Errorf("keep a result: %w", err)
	}
	k.size += int64(out.Len())
	k.next++
	return nil
}

// close forgets the key. The file stays for the wipe.
func (k *kept) close() error {
	k.key.Destroy()
	return k.file.Close()
}

package ceph

import (
	"bufio"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Entry is what the gateway says about one request.
type Entry struct {
	Method, Bucket, Key string // the key as a path-style request writes it, decoded once
	User                string // empty when not authenticated
	Status              int
	BytesSent           int64 // of the body
}

// Mark is a place in the gateway's log.
type Mark int64

// Mark is the present end of the log.
func (l *Lab) Mark() (Mark, error) {
	info, err := os.Stat(l.log())
	if err != nil {
		return 0, fmt.Errorf("ceph lab: %w", err)
	}
	return Mark(info.Size()), nil
}

// Log reads what the gateway said about requests since a mark. Of the bytes it
// counts those of the body, in both directions.
func (l *Lab) Log(since Mark) ([]Entry, error) {
	f, err := os.Open(l.log())
	if err != nil {
		return nil, fmt.Errorf("ceph lab: %w", err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Seek(int64(since), 0); err != nil {
		return nil, fmt.Errorf("ceph lab: %w", err)
	}
	line := regexp.MustCompile(`beast: 0x[0-9a-f]+: \S+ - (\S+) \[[^]]*\] "(\S+) (\S+) HTTP/1\.\d" (\d+) (\d+) `)
	var all []Entry
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		m := line.FindStringSubmatch(in.Text())
		if m == nil {
			continue
		}
		target, err := url.ParseRequestURI(m[3])
		if err != nil {
			return nil, fmt.Errorf("ceph lab: its log names %q: %w", m[3], err)
		}
		e := Entry{Method: m[2], User: strings.TrimPrefix(m[1], "-")}
		e.Bucket, e.Key, _ = strings.Cut(strings.TrimPrefix(target.Path, "/"), "/")
		e.Status, _ = strconv.Atoi(m[4])                // digits
		e.BytesSent, _ = strconv.ParseInt(m[5], 10, 64) // digits
		all = append(all, e)
	}
	return all, in.Err()
}

func (l *Lab) log() string { return filepath.Join(l.config.Dir, "logs", "client.rgw.a.log") }

// Policy is a bucket policy that lets users read, write, list and delete in the
// bucket. What a user writes into the bucket of another belongs to the user:
// whom the policy does not name can't read it, not even the bucket's owner.
func Policy(bucket string, users ...string) string {
	var names []string
	for _, u := range users {
		names = append(names, strconv.Quote("arn:aws:iam:::user/"+u))
	}
	return fmt.Sprintf(`{"Version": "2012-10-17", "Statement": [{"Effect": "Allow",
		"Principal": {"AWS": [%s]}, "Action": "s3:*",
		"Resource": ["arn:aws:s3:::%s", "arn:aws:s3:::%s/*"]}]}`, strings.Join(names, ", "), bucket, bucket)
}

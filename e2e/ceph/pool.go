package ceph

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"spillway.dev/spillway/datasync/s3"
)

// Pool hands out labs to tests that want one each and follow each other: a
// start takes a quarter of a minute, so that a lab is emptied and used again.
// All buckets belong to the first of its users. Config.Dir stays empty.
type Pool struct {
	Config Config

	mu        sync.Mutex
	all, free []*Lab
}

// Take returns a lab without buckets, a new one if none is free.
func (p *Pool) Take(ctx context.Context) (*Lab, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		l := p.free[n-1]
		p.free = p.free[:n-1]
		return l, nil
	}
	config := p.Config
	var err error
	if config.Dir, err = os.MkdirTemp("", "ceph"); err != nil {
		return nil, err
	}
	l, err := Start(ctx, config)
	if err != nil {
		return nil, err
	}
	p.all = append(p.all, l)
	return l, nil
}

// Return empties a lab for the next that takes one.
func (p *Pool) Return(ctx context.Context, l *Lab) error {
	owner := l.config.Users[0]
	c, err := minio.New(l.addr, &minio.Options{Creds: credentials.NewStaticV4(owner.AccessKey, owner.SecretKey, ""), Region: "us-east-1"})
	if err != nil {
		return err
	}
	s, err := s3.NewStaging(s3.Endpoint{URL: l.URL(), AccessKey: owner.AccessKey, SecretKey: owner.SecretKey})
	if err != nil {
		return err
	}
	buckets, err := c.ListBuckets(ctx)
	if err != nil {
		return fmt.Errorf("empty the gateway: %w", err)
	}
	for _, b := range buckets {
		_, err := s.Sweep(ctx, b.Name)
		if err == nil {
			err = s.RemoveBucket(ctx, b.Name)
		}
		if err != nil { // a key that no XML can list
			_, err = l.Run(ctx, nil, "radosgw-admin", "bucket", "rm", "--bucket", b.Name, "--purge-objects")
		}
		if err != nil {
			return fmt.Errorf("empty the gateway: %w", err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, l)
	return nil
}

// Close ends all labs and removes what they wrote.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var problems []error
	for _, l := range p.all {
		problems = append(problems, l.Stop(), os.RemoveAll(l.config.Dir))
	}
	return errors.Join(problems...)
}

// Package transit keeps the key-encryption keys of bursts in the transit
// secrets engine of HashiCorp Vault or OpenBao, over its public HTTP API
// (https://openbao.org/api-docs/secret/transit/,
// https://developer.hashicorp.com/vault/api-docs/secret/transit).
//
// Each burst has a named key of its own, and its end is that key's deletion.
// One key with a version for each burst would not do: versions can be trimmed
// from the oldest on only, so no burst's version could be destroyed while an
// older burst lives, and min_decryption_version merely forbids. Deleting a
// named key removes all its versions from the engine's storage and cache.
//
// The promise: [stager.ErrNoKEK] is said only when the engine refused to
// decrypt and does not know the key's name, never for a server that is sealed,
// out of reach or at another address. What the engine's own snapshots and
// replicas still hold, nobody outside can see: [Client.Look] says so.
//
// Vocabulary: mount is the path at which the engine is enabled; namespace is
// the tenant of the server that holds the mount; a refusal is an answer with
// an error in it.
package transit

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"spillway.dev/spillway/datasync/seal"
	"spillway.dev/spillway/datasync/stager"
)

// Config says where the engine is. Address and TokenFile are required.
type Config struct {
	Address   string         // https URL of the server
	Mount     string         // where the engine is enabled; empty means "transit"
	Namespace string         // empty means none
	Prefix    string         // of the names of our keys; empty means "spillway-"
	TokenFile string         // read for every request, so whoever renews the token writes it there
	CA        *x509.CertPool // of the server's certificate; nil means the system's
	Timeout   time.Duration  // of one try; 0 means 10 s
	Pause     time.Duration  // before the first repetition, then doubled; 0 means 200 ms
}

// Client is a [stager.VersionedKEKs]. It is safe for concurrent use.
type Client struct {
	cfg  Config
	http *http.Client
}

// New returns a client; it does not reach the server yet.
func New(cfg Config) (*Client, error) {
	u, err := url.Parse(cfg.Address)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("key service address %q: it has to be an https URL: a token and data keys go there", cfg.Address)
	}
	if cfg.TokenFile == "" {
		return nil, fmt.Errorf("key service %s: no token file is named: write a token into a file that only this user reads, and name it", cfg.Address)
	}
	cfg.Address = strings.TrimSuffix(cfg.Address, "/")
	if cfg.Mount = strings.Trim(cfg.Mount, "/"); cfg.Mount == "" {
		cfg.Mount = "transit"
	}
	if cfg.Prefix == "" {
		cfg.Prefix = "spillway-"
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	if cfg.Pause == 0 {
		cfg.Pause = 200 * time.Millisecond
	}
	return &Client{cfg: cfg, http: &http.Client{
		Timeout:       cfg.Timeout,
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: cfg.CA, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true},
		CheckRedirect: onlyEncrypted,
	}}, nil
}

// onlyEncrypted follows a standby server to the active one. Whoever answers
// has shown a certificate and has the token anyway; only the wire must not.
func onlyEncrypted(r *http.Request, via []*http.Request) error {
	if r.URL.Scheme != "https" {
		return fmt.Errorf("it redirects to %s, which is not encrypted: set its api_addr to an https URL", r.URL)
	}
	if len(via) > 3 {
		return errors.New("it redirects in a circle: set api_addr of each server to its own URL")
	}
	return nil
}

// named is what the engine says about a key.
type named struct {
	Type                 string         `json:"type"`
	Exportable           bool           `json:"exportable"`
	AllowPlaintextBackup bool           `json:"allow_plaintext_backup"`
	Imported             bool           `json:"imported_key"`
	Latest               int            `json:"latest_version"`
	BackupInfo           map[string]any `json:"backup_info"`
	RestoreInfo          map[string]any `json:"restore_info"`
}

const keyType = "aes256-gcm96"

// Make implements [stager.KEKs]. The engine leaves a key that is there as it
// is. Deletion stays forbidden until [Client.Destroy] asks for it, and what lets
// a key out is not even named, so that a policy may deny those parameters.
func (c *Client) Make(ctx context.Context, name string) error {
	_, err := c.call(ctx, "make", http.MethodPost, c.key(name), map[string]any{"type": keyType}, nil)
	return err
}

// Look implements [stager.KEKs]. Whatever lets a copy of the key leave the
// engine is a doubt about its destruction.
func (c *Client) Look(ctx context.Context, name string) (stager.KEK, error) {
	kek := stager.KEK{
		ID: c.cfg.Address + "/" + c.key(name), Method: "named key deleted in the transit engine, all versions",
		Beyond: "snapshots, backups and replicas of the key service's own storage from before: restoring one brings the key back",
	}
	var n named
	err := c.read(ctx, name, &n)
	if err != nil {
		return kek, err
	}
	kek.Version = strconv.Itoa(n.Latest)
	for _, d := range []struct {
		yes  bool
		text string
	}{
		{n.Exportable, "the key could be exported"},
		{n.AllowPlaintextBackup, "a backup of the key in the clear was allowed"},
		{n.Imported, "the key was imported, so whoever made it may have a copy"},
		{n.BackupInfo != nil, "a backup of the key was taken"},
		{n.RestoreInfo != nil, "the key was restored from a backup, which still exists"},
		{n.Type != keyType, "the key is of type " + n.Type + ", so it is not the one that was made"},
	} {
		if d.yes {
			kek.Doubts = append(kek.Doubts, d.text)
		}
	}
	return kek, nil
}

// read reads a key; [stager.ErrNoKEK] when the engine knows no such name.
func (c *Client) read(ctx context.Context, name string, n *named) error {
	_, err := c.call(ctx, "look at", http.MethodGet, c.key(name), nil, n)
	if r, ok := errors.AsType[*Refusal](err); ok && r.Status == http.StatusNotFound && len(r.Said) == 0 {
		// With words in it, a 404 speaks of the path: the mount, the namespace.
		return fmt.Errorf("%w: %w", stager.ErrNoKEK, err)
	}
	return err
}

// Wrap implements [stager.KEKs]. It asks for the key first: where the token may
// create, an encryption under a name that is not there makes a key on the sly.
func (c *Client) Wrap(ctx context.Context, name string, key seal.DataKey) ([]byte, error) {
	if err := c.read(ctx, name, &named{}); err != nil {
		return nil, err
	}
	var out struct {
		Ciphertext string `json:"ciphertext"`
	}
	_, err := c.call(ctx, "wrap with", http.MethodPost, c.cfg.Mount+"/encrypt/"+c.cfg.Prefix+name, map[string]any{
		"plaintext": base64.StdEncoding.EncodeToString(key[:]), "associated_data": bound(name),
	}, &out)
	if err != nil {
		return nil, c.orGone(ctx, name, err)
	}
	return []byte(out.Ciphertext), nil
}

// Unwrap implements [stager.KEKs].
func (c *Client) Unwrap(ctx context.Context, name string, wrapped []byte) (seal.DataKey, error) {
	var out struct {
		Plaintext []byte `json:"plaintext"`
	}
	_, err := c.call(ctx, "unwrap with", http.MethodPost, c.cfg.Mount+"/decrypt/"+c.cfg.Prefix+name, map[string]any{
		"ciphertext": string(wrapped), "associated_data": bound(name),
	}, &out)
	if err != nil {
		return seal.DataKey{}, c.orGone(ctx, name, err)
	}
	defer clear(out.Plaintext)
	if len(out.Plaintext) != len(seal.DataKey{}) {
		return seal.DataKey{}, fmt.Errorf("%w: key service %s gave %d bytes for a data key", seal.ErrUnwrap, c.cfg.Address, len(out.Plaintext))
	}
	return seal.DataKey(out.Plaintext), nil
}

// bound ties what is wrapped to the key's name: associated data of AES-GCM.
func bound(name string) string { return base64.StdEncoding.EncodeToString([]byte(name)) }

// orGone finds out what a refused encryption or decryption means: the engine
// answers 400 for a key that does not exist and for one that it does not fit.
// Words in an answer are for people, so the key itself is asked for.
func (c *Client) orGone(ctx context.Context, name string, err error) error {
	r, ok := errors.AsType[*Refusal](err)
	if !ok || r.Status != http.StatusBadRequest {
		return err
	}
	switch look := c.read(ctx, name, &named{}); {
	case errors.Is(look, stager.ErrNoKEK):
		return fmt.Errorf("%w: %w", stager.ErrNoKEK, err)
	case look != nil:
		return look
	default:
		return fmt.Errorf("%w: %w", seal.ErrUnwrap, err)
	}
}

// Destroy implements [stager.KEKs]. The answer to the deletion is not believed:
// it counts when the engine does not know the name any more.
func (c *Client) Destroy(ctx context.Context, name string) (string, error) {
	err := c.read(ctx, name, &named{})
	if errors.Is(err, stager.ErrNoKEK) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	audit, err := c.call(ctx, "allow the deletion of", http.MethodPost, c.key(name)+"/config", map[string]any{"deletion_allowed": true}, nil)
	if err != nil {
		return "", err
	}
	_, asked := c.call(ctx, "delete", http.MethodDelete, c.key(name), nil, nil)
	err = c.read(ctx, name, &named{})
	switch {
	case errors.Is(err, stager.ErrNoKEK):
		return audit, nil // also when the answer to the deletion was lost, or to a repetition a refusal
	case asked != nil:
		return "", asked
	case err != nil:
		return "", err
	default:
		return "", fmt.Errorf("key %s: key service %s says that it is deleted, and still has it: look at its log, and delete the key there", c.cfg.Prefix+name, c.cfg.Address)
	}
}

// Rotate implements [stager.VersionedKEKs].
func (c *Client) Rotate(ctx context.Context, name string) error {
	_, err := c.call(ctx, "rotate", http.MethodPost, c.key(name)+"/rotate", nil, nil)
	return err
}

// Retire implements [stager.VersionedKEKs]: trim deletes, the two minima that
// it asks for only forbid.
func (c *Client) Retire(ctx context.Context, name string) error {
	var n named
	if err := c.read(ctx, name, &n); err != nil {
		return err
	}
	_, err := c.call(ctx, "retire old versions of", http.MethodPost, c.key(name)+"/config", map[string]any{
		"min_decryption_version": n.Latest, "min_encryption_version": n.Latest,
	}, nil)
	if err != nil {
		return err
	}
	_, err = c.call(ctx, "trim", http.MethodPost, c.key(name)+"/trim", map[string]any{"min_available_version": n.Latest}, nil)
	return err
}

// key is the path of a named key.
func (c *Client) key(name string) string { return c.cfg.Mount + "/keys/" + c.cfg.Prefix + name }

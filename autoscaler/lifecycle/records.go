package lifecycle

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/nodeagent/wipe"
)

// FileRecords is [Records] in a directory: one folder a burst, and the list of
// certificates in the order of their chain.
type FileRecords struct {
	Dir string
	// Key signs certificates, SignedBy is its name.
	Key      ed25519.PrivateKey
	SignedBy string
	Operator string

	mu sync.Mutex
}

const (
	certificateName  = "certificate.json"
	certificateIndex = "certificates"
)

// Keep implements [Records]: written beside, synced, then renamed.
func (r *FileRecords) Keep(burst, name string, data []byte) error {
	path, err := r.path(burst, name)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("keep record %s of burst %s: %w", name, burst, err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("keep record %s of burst %s: %w", name, burst, err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // what matters is the error that is returned
		return fmt.Errorf("keep record %s of burst %s: %w; free space or fix the records folder", name, burst, err)
	}
	return nil
}

// Load implements [Records].
func (r *FileRecords) Load(burst, name string) ([]byte, error) {
	path, err := r.path(burst, name)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("record %s of burst %s: %w", name, burst, err)
	}
	return data, nil
}

// path refuses names that leave the burst's folder.
func (r *FileRecords) path(burst, name string) (string, error) {
	if burst == "" || strings.ContainsAny(burst, `/\.`) || !filepath.IsLocal(name) {
		return "", fmt.Errorf("record %q of burst %q: not a name for a record", name, burst)
	}
	return filepath.Join(r.Dir, burst, name), nil
}

// Certify implements [Records].
func (r *FileRecords) Certify(burst string, c wipe.Certificate) (v1alpha1.CertificateReference, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	chain, err := r.chain()
	if err != nil {
		return v1alpha1.CertificateReference{}, err
	}
	kept, err := r.Load(burst, certificateName)
	if errors.Is(err, fs.ErrNotExist) {
		if len(chain) > 0 {
			c.PrevHash = chain[len(chain)-1]
		}
		c.SignedBy, c.Operator = r.SignedBy, r.Operator
		kept, err = r.sign(burst, c)
	}
	if err != nil {
		return v1alpha1.CertificateReference{}, err
	}
	var signed wipe.SignedCertificate
	if err := json.Unmarshal(kept, &signed); err != nil {
		return v1alpha1.CertificateReference{}, fmt.Errorf("certificate of burst %s: %w", burst, err)
	}
	first, err := wipe.VerifyCertificate(r.Key.Public().(ed25519.PublicKey), signed)
	if err != nil {
		return v1alpha1.CertificateReference{}, fmt.Errorf("certificate of burst %s: %w", burst, err)
	}
	if _, err := r.chain(); err != nil {
		return v1alpha1.CertificateReference{}, err
	}
	sum := sha256.Sum256(kept)
	return v1alpha1.CertificateReference{
		Name: burst + "/" + certificateName, SHA256: hex.EncodeToString(sum[:]), Level: string(first.Level),
	}, nil
}

func (r *FileRecords) sign(burst string, c wipe.Certificate) ([]byte, error) {
	signed, err := wipe.SignCertificate(r.Key, c)
	if err != nil {
		return nil, err
	}
	data, err := json.MarshalIndent(signed, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("certificate of burst %s: %w", burst, err)
	}
	return data, r.Keep(burst, certificateName, data)
}

// chain returns the hashes of all certificates in order. A certificate that a
// crash kept from the list is put at its end.
func (r *FileRecords) chain() ([]string, error) {
	index := filepath.Join(r.Dir, certificateIndex)
	data, err := os.ReadFile(index)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list of certificates: %w", err)
	}
	chain := strings.Fields(string(data))
	files, err := filepath.Glob(filepath.Join(r.Dir, "*", certificateName))
	if err != nil {
		return nil, fmt.Errorf("list of certificates: %w", err)
	}
	for _, file := range files {
		hash, err := certificateHash(file)
		if err != nil {
			return nil, err
		}
		if slices.Contains(chain, hash) {
			continue
		}
		chain = append(chain, hash)
		if err := appendLine(index, hash); err != nil {
			return nil, fmt.Errorf("list of certificates: %w", err)
		}
	}
	return chain, nil
}

func certificateHash(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("certificate: %w", err)
	}
	var signed wipe.SignedCertificate
	if err := json.NewDecoder(bytes.NewReader(data)).Decode(&signed); err != nil {
		return "", fmt.Errorf("certificate %s: %w", file, err)
	}
	return signed.Hash()
}

func appendLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Sync(), f.Close())
}

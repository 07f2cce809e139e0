package keyservice

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// engine is the transit secrets engine's keys. Its behaviour is that of the
// HTTP API reference, https://openbao.org/api-docs/secret/transit/ (the
// sections are named below); where that is silent, status and words are those
// that the engine of Vault 1.21.4 gave when it was asked.
type engine struct{ keys map[string]*namedKey }

type namedKey struct {
	versions            map[int][]byte
	latest              int
	minDecrypt          int
	minEncrypt          int
	minAvailable        int
	deletable, softGone bool
	exportable, backup  bool
}

// answer is what the engine says: a status, the data, or words of refusal.
type answer struct {
	status int
	data   map[string]any
	said   []string
}

func refuse(status int, format string, args ...any) answer {
	return answer{status: status, said: []string{fmt.Sprintf(format, args...)}}
}

// do answers one request below the mount.
func (e *engine) do(method, path string, in map[string]any, f *Faults) answer {
	kind, rest, _ := strings.Cut(path, "/")
	name, act, _ := strings.Cut(rest, "/")
	k := e.keys[name]
	switch {
	case kind == "keys" && act == "" && method == http.MethodPost:
		return e.create(name, in)
	case kind == "keys" && act == "" && method == http.MethodGet:
		if k == nil { // sys: a read of nothing is a 404 without words
			return answer{status: http.StatusNotFound, said: []string{}}
		}
		return k.described(name)
	case kind == "keys" && act == "" && method == http.MethodDelete:
		return e.delete(name, f)
	case kind == "keys" && act == "config" && method == http.MethodPost:
		if k == nil {
			return refuse(http.StatusBadRequest, "no existing key named %s could be found", name)
		}
		return k.configure(name, in)
	case kind == "keys" && act == "rotate" && method == http.MethodPost:
		if k == nil {
			return refuse(http.StatusBadRequest, "key not found")
		}
		k.rotate()
		return k.described(name)
	case kind == "keys" && act == "trim" && method == http.MethodPost:
		if k == nil {
			return refuse(http.StatusBadRequest, "invalid key name")
		}
		return k.trim(name, in)
	case kind == "encrypt" && method == http.MethodPost:
		return e.encrypt(name, in, f)
	case kind == "decrypt" && method == http.MethodPost:
		if k == nil || k.softGone {
			return refuse(http.StatusBadRequest, "encryption key not found")
		}
		return k.decrypt(in)
	}
	return refuse(http.StatusNotFound, "unsupported path")
}

// create: section "Create key". A key that is there stays, with a warning.
func (e *engine) create(name string, in map[string]any) answer {
	if e.keys[name] == nil {
		k := &namedKey{versions: map[int][]byte{}, minDecrypt: 1}
		k.exportable, _ = in["exportable"].(bool)
		k.rotate()
		e.keys[name] = k
	}
	return e.keys[name].described(name)
}

// delete: section "Delete key", allowed by the key's configuration only.
func (e *engine) delete(name string, f *Faults) answer {
	k := e.keys[name]
	switch {
	case k == nil:
		return refuse(http.StatusBadRequest, "error deleting policy %s: could not delete key; not found", name)
	case !k.deletable:
		return refuse(http.StatusBadRequest, "error deleting policy %s: deletion is not allowed for this key", name)
	case f.KeepDeleted:
	case f.SoftDelete: // section "Soft delete key": it can still be read and be restored
		k.softGone = true
	default:
		delete(e.keys, name)
	}
	return answer{status: http.StatusNoContent}
}

// described: section "Read key".
func (k *namedKey) described(name string) answer {
	data := map[string]any{
		"name": name, "type": "aes256-gcm96", "latest_version": k.latest, "deletion_allowed": k.deletable,
		"exportable": k.exportable, "allow_plaintext_backup": k.backup, "imported_key": false,
		"min_decryption_version": k.minDecrypt, "min_encryption_version": k.minEncrypt, "min_available_version": k.minAvailable,
	}
	if k.backup {
		data["backup_info"] = map[string]any{"version": k.latest}
	}
	return answer{status: http.StatusOK, data: data}
}

// configure: section "Update key configuration". What lets a key out can be
// switched on only.
func (k *namedKey) configure(name string, in map[string]any) answer {
	if v, ok := in["deletion_allowed"].(bool); ok {
		k.deletable = v
	}
	for _, v := range []struct {
		to   *bool
		name string
	}{{&k.exportable, "exportable"}, {&k.backup, "allow_plaintext_backup"}} {
		on, _ := in[v.name].(bool)
		*v.to = *v.to || on
	}
	for _, v := range []struct {
		to   *int
		name string
	}{{&k.minDecrypt, "min_decryption_version"}, {&k.minEncrypt, "min_encryption_version"}} {
		n, ok := in[v.name].(float64)
		if !ok {
			continue
		}
		if int(n) > k.latest {
			return refuse(http.StatusBadRequest, "cannot set %s of %d, latest key version is %d", v.name, int(n), k.latest)
		}
		*v.to = int(n)
	}
	return k.described(name)
}

func (k *namedKey) rotate() {
	k.latest++
	fresh := make([]byte, 32)
	_, _ = rand.Read(fresh) // it never fails
	k.versions[k.latest] = fresh
}

// trim: section "Trim key": from the oldest version on only, and never beyond
// what may still be used.
func (k *namedKey) trim(name string, in map[string]any) answer {
	n, ok := in["min_available_version"].(float64)
	switch v := int(n); {
	case !ok:
		return refuse(http.StatusBadRequest, "missing min_available_version")
	case v < k.minAvailable:
		return refuse(http.StatusBadRequest, "minimum available version cannot be decremented")
	case k.minEncrypt == 0:
		return refuse(http.StatusBadRequest, "minimum available version cannot be set when minimum encryption version is not set")
	case v > k.minEncrypt || v > k.minDecrypt:
		return refuse(http.StatusBadRequest, "minimum available version cannot be greater than minimum encryption or decryption version")
	default:
		k.minAvailable = v
	}
	for v := range k.versions {
		if v < k.minAvailable {
			delete(k.versions, v)
		}
	}
	return k.described(name)
}

// encrypt: section "Encrypt data". A token with the capability "create" makes
// a key that isn't there; one with "update" alone is refused.
func (e *engine) encrypt(name string, in map[string]any, f *Faults) answer {
	k := e.keys[name]
	if k == nil {
		if !f.MayCreate {
			return refuse(http.StatusForbidden, "1 error occurred:\n\t* permission denied\n\n")
		}
		e.create(name, nil)
		k = e.keys[name]
	}
	if k.softGone {
		return refuse(http.StatusBadRequest, "encryption key not found")
	}
	plain, err := decoded(in, "plaintext")
	ad, adErr := decoded(in, "associated_data")
	if err != nil || adErr != nil {
		return refuse(http.StatusBadRequest, "failed to base64-decode")
	}
	nonce := make([]byte, 12)
	_, _ = rand.Read(nonce) // it never fails
	box := k.aead(k.latest).Seal(nonce, nonce, plain, ad)
	return answer{status: http.StatusOK, data: map[string]any{
		"ciphertext": fmt.Sprintf("vault:v%d:%s", k.latest, base64.StdEncoding.EncodeToString(box)), "key_version": k.latest,
	}}
}

// decrypt: section "Decrypt data".
func (k *namedKey) decrypt(in map[string]any) answer {
	text, _ := in["ciphertext"].(string)
	ad, err := decoded(in, "associated_data")
	prefix, body, ok := strings.Cut(strings.TrimPrefix(text, "vault:v"), ":")
	version, bad := strconv.Atoi(prefix)
	box, bad64 := base64.StdEncoding.DecodeString(body)
	switch {
	case err != nil || !ok || bad != nil || bad64 != nil || len(box) < 12:
		return refuse(http.StatusBadRequest, "invalid ciphertext: no prefix")
	case version < k.minDecrypt || k.versions[version] == nil:
		return refuse(http.StatusBadRequest, "ciphertext or signature version is disallowed by policy (too old)")
	}
	plain, err := k.aead(version).Open(nil, box[:12], box[12:], ad)
	if err != nil {
		return refuse(http.StatusBadRequest, "cipher: message authentication failed")
	}
	return answer{status: http.StatusOK, data: map[string]any{"plaintext": base64.StdEncoding.EncodeToString(plain)}}
}

func (k *namedKey) aead(version int) cipher.AEAD {
	block, err := aes.NewCipher(k.versions[version])
	if err == nil {
		var a cipher.AEAD
		if a, err = cipher.NewGCM(block); err == nil {
			return a
		}
	}
	panic("a key of 32 bytes is a key of AES: " + err.Error())
}

func decoded(in map[string]any, field string) ([]byte, error) {
	text, _ := in[field].(string)
	return base64.StdEncoding.DecodeString(text)
}

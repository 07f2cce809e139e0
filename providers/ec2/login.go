package ec2

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
)

// The keys of a credentials Secret.
const (
	keyAccess  = "accessKey"
	keySecret  = "secretKey"
	keySession = "sessionToken" // of temporary keys only
	keyCA      = "ca.crt"       // PEM; certificate authorities of an endpoint of one's own
)

// ReadLogin reads the data of a credentials Secret: accessKey and secretKey, and
// optionally sessionToken and ca.crt. Files, environment variables and metadata
// services of this process are not looked at.
func ReadLogin(secret map[string][]byte) (Login, error) {
	text := func(key string) string { return string(bytes.TrimSpace(secret[key])) }
	for _, key := range []string{keyAccess, keySecret} {
		if text(key) == "" {
			return Login{}, fmt.Errorf("the Secret has no key %s: put the account's key there as %s and %s", key, keyAccess, keySecret)
		}
	}
	login := Login{AccessKey: text(keyAccess), SecretKey: text(keySecret), SessionToken: text(keySession)}
	if pem := secret[keyCA]; len(pem) > 0 {
		login.TLS = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
		if !login.TLS.RootCAs.AppendCertsFromPEM(pem) {
			return Login{}, fmt.Errorf("%s: no certificate in it", keyCA)
		}
	}
	return login, nil
}

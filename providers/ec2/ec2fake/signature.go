package ec2fake

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// oldest is how far a signature's date may be off ("errors-overview",
// RequestExpired: more than 15 minutes).
const oldest = 15 * time.Minute

// signed checks the signature of a request: AWS Signature Version 4, as the
// page "Create a signed AWS API request" of the IAM User Guide states it.
func (c *Cloud) signed(r *http.Request, body []byte) *refusal {
	fields, ok := strings.CutPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ")
	if !ok {
		return &refusal{status: http.StatusForbidden, code: "MissingAuthenticationToken", message: "Request is missing Authentication Token"}
	}
	parts := map[string]string{}
	for field := range strings.SplitSeq(fields, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		parts[name] = value
	}
	keyID, scope, _ := strings.Cut(parts["Credential"], "/")
	date := r.Header.Get("X-Amz-Date")
	at, err := time.Parse("20060102T150405Z", date)
	if err != nil || scope != date[:8]+"/"+c.cfg.Region+"/ec2/aws4_request" {
		return &refusal{
			status: http.StatusForbidden, code: "SignatureDoesNotMatch",
			message: fmt.Sprintf("Credential should be scoped to a valid region and service: %s", scope),
		}
	}
	if off := time.Since(at); off.Abs() > oldest {
		return invalid("RequestExpired", fmt.Sprintf("Request has expired: its date is %s off.", off.Round(time.Minute)))
	}
	secret, known := c.keys[keyID]
	names := strings.Split(parts["SignedHeaders"], ";")
	text := "AWS4-HMAC-SHA256\n" + date + "\n" + scope + "\n" + hash([]byte(canonical(r, names, body)))
	key := []byte("AWS4" + secret)
	for part := range strings.SplitSeq(scope, "/") {
		key = sign(key, part)
	}
	if !known || !hmac.Equal([]byte(hex.EncodeToString(sign(key, text))), []byte(parts["Signature"])) {
		return &refusal{
			status: http.StatusUnauthorized, code: "AuthFailure",
			message: "AWS was not able to validate the provided access credentials",
		}
	}
	return nil
}

// canonical is the request in the form that is signed.
func canonical(r *http.Request, names []string, body []byte) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\n%s\n", r.Method, r.URL.EscapedPath(), r.URL.RawQuery)
	for _, name := range names {
		value := strings.Join(r.Header.Values(name), ",")
		switch name { // the server takes them out of the headers
		case "host":
			value = r.Host
		case "content-length":
			value = fmt.Sprint(r.ContentLength)
		}
		fmt.Fprintf(&b, "%s:%s\n", name, strings.Join(strings.Fields(value), " "))
	}
	fmt.Fprintf(&b, "\n%s\n%s", strings.Join(names, ";"), hash(body))
	return b.String()
}

func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func sign(key []byte, text string) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

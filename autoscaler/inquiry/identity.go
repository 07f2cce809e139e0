package inquiry

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// problem is a refusal with its HTTP status, in words for the person.
type problem struct {
	status int
	err    error
}

func (p *problem) Error() string { return p.err.Error() }
func (p *problem) Unwrap() error { return p.err }

func refuse(status int, format string, args ...any) error {
	return &problem{status, fmt.Errorf(format, args...)}
}

// who is the person behind a request: by the certificate when one is shown that
// holds, else by the token. The order is the API server's.
func (s *Server) who(ctx context.Context, r *http.Request) (authenticationv1.UserInfo, error) {
	for name := range r.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			return authenticationv1.UserInfo{}, refuse(http.StatusBadRequest, "nobody can be impersonated here: ask without --as, as yourself")
		}
	}
	user, certified := s.certified(r)
	if !certified {
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || token == "" {
			return user, refuse(http.StatusUnauthorized, "nobody is named by the request: the kubeconfig holds neither a token nor a client certificate of this cluster")
		}
		var err error
		if user, err = s.reviewed(ctx, token); err != nil {
			return user, err
		}
	}
	if slices.Contains(user.Groups, "system:nodes") {
		return user, refuse(http.StatusForbidden, "nodes may not ask: this is for people and their programs")
	}
	return user, nil
}

// certified reads the person off a client certificate, as the API server does:
// the common name is the user, the organisations are the groups.
func (s *Server) certified(r *http.Request) (authenticationv1.UserInfo, bool) {
	if s.ClientCA == nil || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return authenticationv1.UserInfo{}, false
	}
	leaf, between := r.TLS.PeerCertificates[0], x509.NewCertPool()
	for _, c := range r.TLS.PeerCertificates[1:] {
		between.AddCert(c)
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: s.ClientCA, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil || leaf.Subject.CommonName == "" {
		return authenticationv1.UserInfo{}, false
	}
	return authenticationv1.UserInfo{
		Username: leaf.Subject.CommonName, Groups: append(slices.Clone(leaf.Subject.Organization), "system:authenticated"),
	}, true
}

// reviewed asks the API server whose token it is. A token that was made for
// another audience than the API server is nobody's.
func (s *Server) reviewed(ctx context.Context, token string) (authenticationv1.UserInfo, error) {
	if !s.reviews.TryAccept() {
		return authenticationv1.UserInfo{}, refuse(http.StatusTooManyRequests, "too many tokens are shown at once: ask again in a few seconds")
	}
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	answer, err := s.Kube.AuthenticationV1().TokenReviews().Create(ctx, review, metav1.CreateOptions{})
	switch {
	case err != nil:
		return authenticationv1.UserInfo{}, fmt.Errorf("ask the API server who this is: %w", err)
	case !answer.Status.Authenticated || answer.Status.User.Username == "":
		return authenticationv1.UserInfo{}, refuse(http.StatusUnauthorized, "the API server does not know the token: log in again")
	}
	return answer.Status.User, nil
}

// may asks the API server whether a person may do something to an object.
func (s *Server) may(ctx context.Context, user authenticationv1.UserInfo, what authorizationv1.ResourceAttributes) error {
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra, ResourceAttributes: &what,
	}}
	answer, err := s.Kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("ask the API server what %s may do: %w", user.Username, err)
	}
	if answer.Status.Allowed && !answer.Status.Denied {
		return nil
	}
	object := what.Resource
	if what.Group != "" {
		object += "." + what.Group
	}
	if what.Name != "" {
		object += " " + what.Name
	}
	where := "in every namespace"
	if what.Namespace != "" {
		where = "in namespace " + what.Namespace
	}
	return refuse(http.StatusForbidden, "%s may not %s %s %s: ask whoever gives rights there", user.Username, what.Verb, object, where)
}

// named checks the names of a request before anybody is asked about them.
func named(namespace, name string) error {
	problems := validation.IsDNS1123Label(namespace)
	if name != "" {
		problems = append(problems, validation.IsDNS1123Subdomain(name)...)
	}
	if len(problems) > 0 {
		return &problem{http.StatusBadRequest, errors.New("namespace or name is none that an object can have: " + problems[0])}
	}
	return nil
}

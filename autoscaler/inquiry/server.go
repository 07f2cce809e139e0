package inquiry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/flowcontrol"

	"spillway.dev/spillway/autoscaler/observe"
	"spillway.dev/spillway/autoscaler/plan"
)

// Config is what a [Server] needs. All fields but ClientCA, Limits and Home are
// needed.
type Config struct {
	// Kube asks the API server who somebody is and what they may do.
	Kube kubernetes.Interface
	// ClientCA is the authority of the cluster's client certificates; without
	// it tokens alone count.
	ClientCA *x509.CertPool
	// Certificate names [ServiceName].
	Certificate tls.Certificate
	// Resources are the kinds that can be asked about.
	Resources []Resource
	Limits    Limits
	Log       *slog.Logger
}

// Limits bound what people can ask of the controller. A zero field takes its
// default.
type Limits struct {
	// Burst requests of one person are answered at once, then PerSecond more.
	Burst     int     // 20
	PerSecond float32 // 2
	// Reviews are the tokens that the API server is asked about, of all people.
	Reviews float32 // 20 a second
	// Tunnels are open at one time.
	Tunnels int // 64
	// Patience is how long a caller may take for TLS, for headers and for a
	// body; a tunnel in which nothing is asked for so long is closed.
	Patience time.Duration // 10 s
}

func (l Limits) withDefaults() Limits {
	or := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	or(&l.Burst, 20)
	or(&l.Tunnels, 64)
	if l.PerSecond <= 0 {
		l.PerSecond = 2
	}
	if l.Reviews <= 0 {
		l.Reviews = 20
	}
	if l.Patience <= 0 {
		l.Patience = 10 * time.Second
	}
	return l
}

// board is the newest state with its plan.
type board struct {
	state   plan.State
	decided plan.Plan
}

// Server answers people. It is an http.Handler for the outer connection, which
// has to be TLS.
type Server struct {
	Config
	board   atomic.Pointer[board]
	reviews flowcontrol.RateLimiter
	tunnels chan struct{}
	heavy   chan struct{} // one at a time decides or writes a state
	desk    *http.Server

	mu      sync.Mutex
	persons map[string]flowcontrol.RateLimiter
}

// New makes a server. It knows nothing before the first [Server.Hang].
func New(c Config) *Server {
	c.Limits = c.Limits.withDefaults()
	s := &Server{
		Config: c, tunnels: make(chan struct{}, c.Limits.Tunnels), heavy: make(chan struct{}, 1),
		reviews: flowcontrol.NewTokenBucketRateLimiter(c.Limits.Reviews, int(2*c.Limits.Reviews)+1),
		persons: map[string]flowcontrol.RateLimiter{},
	}
	mux := http.NewServeMux()
	mux.Handle("GET /v1/why", s.answering(s.why))
	mux.Handle("POST /v1/simulate", s.answering(s.simulate))
	mux.Handle("GET /v1/state", s.answering(s.capture))
	s.desk = deskServer(mux, c)
	return s
}

// Hang puts the newest state and its plan on the board. Both are only read.
func (s *Server) Hang(state plan.State, decided plan.Plan) { s.board.Store(&board{state, decided}) }

// asked is one request of a known person.
type asked struct {
	*http.Request
	user authenticationv1.UserInfo
	board
}

func (a asked) value(name string) string { return a.URL.Query().Get(name) }

// answering makes an HTTP handler of an answer: it finds out who asks, bounds
// how often, and writes the answer or the refusal as JSON.
func (s *Server) answering(answer func(asked) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, mostRequest)
		value, err := s.answer(r, answer)
		w.Header().Set("Content-Type", "application/json")
		if err == nil {
			_ = json.NewEncoder(w).Encode(value) // the caller may be gone
			return
		}
		status := http.StatusInternalServerError
		if p, ok := errors.AsType[*problem](err); ok {
			status = p.status
		} else {
			s.Log.Error("a question is not answered", "path", r.URL.Path, "error", err)
			err = errors.New("the controller could not answer; its log says why")
		}
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(refusal{err.Error()})
	})
}

// refusal is the body of every answer that is none.
type refusal struct {
	Error string `json:"error"`
}

func (s *Server) answer(r *http.Request, answer func(asked) (any, error)) (any, error) {
	user, err := s.who(r.Context(), r)
	if err != nil {
		return nil, err
	}
	if !s.limiter(user.Username).TryAccept() {
		return nil, refuse(http.StatusTooManyRequests, "%s asks too often: ask again in a few seconds", user.Username)
	}
	b := s.board.Load()
	if b == nil {
		return nil, refuse(http.StatusServiceUnavailable, "the controller has just started and has not looked at the cluster yet: ask again in a few seconds")
	}
	return answer(asked{r, user, *b})
}

// mostPersons bounds the memory of who asked lately.
const mostPersons = 4096

func (s *Server) limiter(user string) flowcontrol.RateLimiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.persons[user]
	if l == nil {
		if len(s.persons) >= mostPersons {
			clear(s.persons)
		}
		l = flowcontrol.NewTokenBucketRateLimiter(s.Limits.PerSecond, s.Limits.Burst)
		s.persons[user] = l
	}
	return l
}

// why answers about the very object that is named, for whoever may get it.
func (s *Server) why(a asked) (any, error) {
	subject := plan.Subject{Namespace: a.value("namespace"), Name: a.value("name")}
	resource, err := s.resource(a.value("kind"))
	if err == nil {
		err = named(subject.Namespace, subject.Name)
	}
	if err == nil && subject.Name == "" {
		err = refuse(http.StatusBadRequest, "the name is missing: say job/NAME")
	}
	if err != nil {
		return nil, err
	}
	subject.Kind = resource.Kind
	if err := s.may(a.Context(), a.user, authorizationv1.ResourceAttributes{
		Verb: "get", Group: resource.Group, Resource: resource.Plural, Namespace: subject.Namespace, Name: subject.Name,
	}); err != nil {
		return nil, err
	}
	return plan.About(a.state, a.decided, subject), nil
}

// resource finds a kind by what people call it: job, jobs, Job, jobs.batch.
func (s *Server) resource(name string) (Resource, error) {
	plain, group, exact := strings.Cut(strings.ToLower(name), ".")
	var kinds []string
	for _, r := range s.Resources {
		if (plain == strings.ToLower(r.Kind) || plain == r.Plural) && (!exact || group == r.Group) {
			return r, nil
		}
		kinds = append(kinds, strings.ToLower(r.Kind))
	}
	return Resource{}, refuse(http.StatusBadRequest, "kind %.64q is none that can be asked about; these are: %s", name, strings.Join(kinds, ", "))
}

// simulate decides on work that is not submitted, beside what waits already, for
// whoever may create it.
func (s *Server) simulate(a asked) (any, error) {
	namespace := a.value("namespace")
	if err := named(namespace, ""); err != nil {
		return nil, err
	}
	manifest, err := io.ReadAll(a.Body)
	if err != nil {
		return nil, refuse(http.StatusRequestEntityTooLarge, "the manifest is larger than %d bytes or did not come in time", mostRequest)
	}
	release, err := s.oneAtATime(a.Context())
	if err != nil {
		return nil, err
	}
	defer release()
	imagined, err := observe.Imagine(manifest, namespace, &a.state)
	if err != nil {
		return nil, refuse(http.StatusUnprocessableEntity, "manifest: %w", err)
	}
	for _, g := range imagined {
		if err := s.mayCreate(a, g.Owner); err != nil {
			return nil, err
		}
	}
	return Simulated(a.state, imagined), nil
}

func (s *Server) mayCreate(a asked, owner plan.Owner) error {
	if err := named(owner.Namespace, owner.Name); err != nil {
		return err
	}
	resource, err := s.resource(owner.Kind + "." + schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).Group)
	if err != nil {
		return err
	}
	return s.may(a.Context(), a.user, authorizationv1.ResourceAttributes{
		Verb: "create", Group: resource.Group, Resource: resource.Plural, Namespace: owner.Namespace,
	})
}

// Simulated is the plan for imagined work alone, decided beside what waits.
func Simulated(s plan.State, imagined []plan.Gang) plan.Plan {
	mine := map[plan.Owner]bool{}
	for _, g := range imagined {
		mine[g.Owner] = true
	}
	s.Gangs = append(s.Gangs[:len(s.Gangs):len(s.Gangs)], imagined...)
	decided := plan.Decide(s)
	of := decided
	of.Decisions = []plan.Decision{}
	for _, d := range decided.Decisions {
		if mine[d.Owner] {
			of.Decisions = append(of.Decisions, d)
		}
	}
	return of
}

// capture gives the whole state away, without secrets, for operators: whoever
// may get states of spillway.dev, a resource that exists for this question only.
func (s *Server) capture(a asked) (any, error) {
	if err := s.may(a.Context(), a.user, authorizationv1.ResourceAttributes{Verb: "get", Group: "spillway.dev", Resource: "states"}); err != nil {
		return nil, err
	}
	release, err := s.oneAtATime(a.Context())
	if err != nil {
		return nil, err
	}
	defer release()
	return plan.Captured(a.state), nil
}

// oneAtATime waits for its turn at what is heavy, for as long as the caller does
// and no longer than patience.
func (s *Server) oneAtATime(ctx context.Context) (release func(), err error) {
	turn := time.NewTimer(s.Limits.Patience)
	defer turn.Stop()
	select {
	case s.heavy <- struct{}{}:
		return func() { <-s.heavy }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-turn.C:
		return nil, refuse(http.StatusServiceUnavailable, "the controller is busy with other questions: ask again in a few seconds")
	}
}

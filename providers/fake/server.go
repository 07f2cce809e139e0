package fake

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"spillway.dev/spillway/providers"
)

// The error codes of the API. A caller branches on them, never on messages.
const (
	codeSoldOut      = "insufficient_capacity"
	codeLimit        = "quota_exceeded"
	codeInvalid      = "invalid"
	codeSpent        = "token_spent"
	codeThrottled    = "throttled"
	codeUnauthorized = "unauthorized"
	codeNotFound     = "machine_not_found"
	codeInternal     = "internal"
	codeNoHost       = "no_valid_host" // only as a machine's fault
)

// maxUserData is the most that a machine accepts, as at most clouds.
const maxUserData = 64 << 10

// reply is what a call has come to, before any fault is laid over it.
type reply struct {
	status int
	body   any
	log    *Call // set by calls that ask for a change
}

// apiError is the body of a refusal.
type apiError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Scope   string `json:"scope,omitempty"`
}

// wireMachine is a machine as the API shows it: the fault has a code, and what
// that means is for the driver to know.
type wireMachine struct {
	providers.Machine
	FaultCode string `json:"faultCode,omitempty"`
}

func wireOf(r *record) wireMachine {
	m := copyOf(r.m)
	m.FaultKind = providers.OutcomeUnknown
	if r.partsOnly && m.State == providers.StateDeleting {
		m.State = providers.StateLeftover
	}
	return wireMachine{Machine: m, FaultCode: r.faultCode}
}

// Serve serves several clouds, each under the path /<provider>/.
func Serve(clouds ...*Cloud) http.Handler {
	mux := http.NewServeMux()
	for _, c := range clouds {
		mux.Handle("/"+c.Provider()+"/", http.StripPrefix("/"+c.Provider(), c.Handler()))
	}
	return mux
}

// Handler serves the account as a JSON API under /v1/. Requests carry one of
// the cloud's secrets as a bearer token.
func (c *Cloud) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /v1/offers", c.endpoint("offers", c.serveOffers))
	mux.Handle("GET /v1/machines", c.endpoint("list", c.serveList))
	mux.Handle("POST /v1/machines", c.endpoint("create", c.serveCreate))
	mux.Handle("GET /v1/machines/{id}", c.endpoint("get", c.serveGet))
	mux.Handle("DELETE /v1/machines/{id}", c.endpoint("delete", c.serveDelete))
	mux.Handle("PUT /v1/machines/{id}/expiry", c.endpoint("extend", c.serveExtend))
	mux.Handle("GET /v1/usage/{token}", c.endpoint("usage", c.serveUsage))
	return mux
}

// endpoint lays credentials, faults and the call log around one operation.
func (c *Cloud) endpoint(op string, do func(*http.Request, Effect) reply) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
		secret, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		fault, res := c.call(op, secret, r, do)
		if fault.Effect == Slow {
			select {
			case <-time.After(fault.Delay):
			case <-r.Context().Done():
			}
		}
		if fault.Effect == LostRequest || fault.Effect == LostResponse {
			panic(http.ErrAbortHandler) // cuts the connection
		}
		if fault.RetryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(fault.RetryAfter/time.Second)))
		}
		if fault.Effect == Gateway {
			http.Error(w, "<html>no such site</html>", http.StatusNotFound)
			return
		}
		body, err := json.Marshal(res.body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if fault.Effect == Incomplete {
			body = body[:len(body)/2]
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(res.status)
		if res.status != http.StatusNoContent {
			_, _ = w.Write(body) // a caller that has gone needs no answer
		}
	})
}

// call runs one operation under the lock, with the fault that is scripted for
// it, and logs it.
func (c *Cloud) call(op, secret string, r *http.Request, do func(*http.Request, Effect) reply) (Fault, reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	if !c.secrets[secret] {
		return Fault{}, refuse(http.StatusUnauthorized, codeUnauthorized, "credential is not accepted", "account")
	}
	fault := c.take(op)
	res, over := overlay(fault)
	if !over || (op == "create" && fault.Effect.refuses()) {
		res = do(r, fault.Effect) // a known token is answered before stock is looked at
	}
	if fault.Effect == ServerErrorAfter {
		res.status, res.body = http.StatusServiceUnavailable, apiError{Code: codeInternal, Message: "backend timed out"}
	}
	if res.log == nil && (op == "create" || op == "extend" || op == "delete") {
		res.log = &Call{ID: r.PathValue("id")}
	}
	if res.log != nil {
		res.log.At, res.log.Op, res.log.Status = c.now(), op, res.status
		if fault.Effect == LostRequest || fault.Effect == LostResponse {
			res.log.Status = 0
		}
		c.calls = append(c.calls, *res.log)
	}
	c.settle()
	return fault, res
}

// overlay answers for a fault that keeps the operation from being done.
func overlay(f Fault) (reply, bool) {
	switch f.Effect {
	case SoldOut:
		return refuse(http.StatusInternalServerError, codeSoldOut, "no capacity for this type here", "offer"), true
	case LimitReached:
		return refuse(http.StatusForbidden, codeLimit, "Quota exceeded for cores", "account"), true
	case Invalid:
		return refuse(http.StatusBadRequest, codeInvalid, "image not found", ""), true
	case Throttle:
		return refuse(http.StatusTooManyRequests, codeThrottled, "slow down", "account"), true
	case Forbidden:
		return refuse(http.StatusUnauthorized, codeUnauthorized, "credential has expired", "account"), true
	case ServerError:
		return refuse(http.StatusServiceUnavailable, codeInternal, "backend is down", ""), true
	case FalseNotFound:
		return refuse(http.StatusNotFound, codeNotFound, "no such machine", ""), true
	case LostRequest, Gateway:
		return reply{status: http.StatusBadGateway}, true
	default:
		return reply{}, false
	}
}

func refuse(status int, code, message, scope string) reply {
	return reply{status: status, body: apiError{Code: code, Message: message, Scope: scope}}
}

func (c *Cloud) serveOffers(*http.Request, Effect) reply {
	offers := make([]providers.Offer, 0, len(c.offers))
	for _, o := range c.offers {
		o.Seen = c.now()
		offers = append(offers, o)
	}
	return reply{status: http.StatusOK, body: offers}
}

func (c *Cloud) serveList(*http.Request, Effect) reply {
	now := c.now()
	list := []wireMachine{}
	for _, r := range c.machines {
		if r.m.State != providers.StateDeleted && !r.visible.After(now) {
			list = append(list, wireOf(r))
		}
	}
	return reply{status: http.StatusOK, body: list}
}

func (c *Cloud) serveGet(r *http.Request, _ Effect) reply {
	rec := c.find(r.PathValue("id"))
	if rec == nil {
		return refuse(http.StatusNotFound, codeNotFound, "no such machine", "")
	}
	return reply{status: http.StatusOK, body: wireOf(rec)}
}

// errTokenForm says what the API accepts as a client token.
var errTokenForm = fmt.Errorf("token must be 1 to 64 characters of A-Z, a-z, 0-9 and -")

func (c *Cloud) serveCreate(r *http.Request, effect Effect) reply {
	var req providers.Request
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		return refuse(http.StatusBadRequest, codeInvalid, "body: "+err.Error(), "")
	}
	log := &Call{Token: req.Token}
	done := func(res reply, id string, made bool) reply {
		log.ID, log.Done = id, made
		res.log = log
		return res
	}
	if old := c.byToken(req.Installation, req.Token); old != nil && !c.cfg.Tokenless {
		if old.m.State == providers.StateDeleted {
			return done(refuse(http.StatusConflict, codeSpent, "token was used by "+old.m.ID+", which is gone", ""), old.m.ID, false)
		}
		return done(reply{status: http.StatusOK, body: wireOf(old)}, old.m.ID, false)
	}
	if err := check(req); err != nil {
		return done(refuse(http.StatusBadRequest, codeInvalid, err.Error(), ""), "", false)
	}
	offer, ok := c.offer(req.Offer.Key())
	if !ok {
		return done(refuse(http.StatusBadRequest, codeInvalid, "no such offer: "+req.Offer.Key(), ""), "", false)
	}
	if res, over := overlay(Fault{Effect: effect}); over {
		return done(res, "", false)
	}
	if offer.SoldOut {
		return done(refuse(http.StatusInternalServerError, codeSoldOut, "no capacity for "+offer.InstanceType, "offer"), "", false)
	}
	req.Offer = offer
	if effect == HalfMade {
		rec := c.halfMake(req)
		return done(refuse(http.StatusInternalServerError, codeSoldOut, "No valid host was found. ", "offer"), rec.m.ID, false)
	}
	rec := c.make(req, effect)
	c.settle()
	return done(reply{status: http.StatusCreated, body: wireOf(rec)}, rec.m.ID, true)
}

// check says what is wrong with a request.
func check(req providers.Request) error {
	if ok, err := regexp.MatchString(`^[A-Za-z0-9-]{1,64}$`, req.Token); err != nil || !ok {
		return errTokenForm
	}
	if req.Installation == "" || req.Burst == "" || req.Name == "" {
		return fmt.Errorf("installation, burst and name are required")
	}
	if req.Expires.IsZero() {
		return fmt.Errorf("expiry stamp is required")
	}
	if len(req.UserData) > maxUserData {
		return fmt.Errorf("user data has %d bytes, at most %d are accepted", len(req.UserData), maxUserData)
	}
	return nil
}

// offer finds an offer by its key; the caller holds the lock.
func (c *Cloud) offer(key string) (providers.Offer, bool) {
	for _, o := range c.offers {
		if o.Key() == key {
			return o, true
		}
	}
	return providers.Offer{}, false
}

func (c *Cloud) serveDelete(r *http.Request, effect Effect) reply {
	id := r.PathValue("id")
	log := &Call{ID: id}
	rec := c.find(id)
	if rec == nil {
		res := refuse(http.StatusNotFound, codeNotFound, "no such machine", "")
		res.log = log
		return res
	}
	log.Token, log.Done = rec.m.Token, true
	if effect == StuckDelete {
		rec.m.State, rec.due, log.Done = providers.StateDeleting, time.Time{}, false
	} else {
		c.remove(rec)
	}
	return reply{status: http.StatusNoContent, log: log}
}

func (c *Cloud) serveExtend(r *http.Request, _ Effect) reply {
	id := r.PathValue("id")
	log := &Call{ID: id}
	var body struct {
		Until time.Time `json:"until"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Until.IsZero() {
		res := refuse(http.StatusBadRequest, codeInvalid, "until is required", "")
		res.log = log
		return res
	}
	rec := c.find(id)
	if rec == nil {
		res := refuse(http.StatusNotFound, codeNotFound, "no such machine", "")
		res.log = log
		return res
	}
	log.Token, log.Done = rec.m.Token, true
	if body.Until.After(rec.m.Expires) {
		rec.m.Expires = body.Until
	}
	return reply{status: http.StatusNoContent, log: log}
}

func (c *Cloud) serveUsage(r *http.Request, _ Effect) reply {
	rec := c.byToken(r.URL.Query().Get("installation"), r.PathValue("token"))
	if rec == nil || rec.partsOnly { // a usage record is of instances
		return refuse(http.StatusNotFound, codeNotFound, "no machine ever had this token", "")
	}
	return reply{status: http.StatusOK, body: wireOf(rec)}
}

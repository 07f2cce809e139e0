package ec2fake

import (
	"encoding/xml"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// Effect is what a fault does to a call.
type Effect string

// The effects. What the reference does not state is said so: a network or a
// proxy may do it all the same.
const (
	Refused    Effect = "refused"         // not done, answered with Status, Code and Message
	ErrorAfter Effect = "error after"     // done, and answered with InternalError
	Lost       Effect = "lost"            // done, and the connection ends without an answer
	Cut        Effect = "cut"             // done, and the answer ends in its middle
	Gateway    Effect = "gateway"         // not done, a proxy answers 404 with a page of its own
	Hangs      Effect = "hangs"           // not done, not answered
	Leaves     Effect = "leaves a part"   // refused, but the network interface was made: no page states it
	FailsLater Effect = "fails later"     // done, and the new instance terminates with Code ("StateReason")
	NeverBoots Effect = "never boots"     // done, and the new instance stays pending
	KeepsParts Effect = "keeps its parts" // done, and nothing of the new instance is deleted with it
)

// Fault meets the next call of an action, once.
type Fault struct {
	Action        string
	Effect        Effect
	Status        int
	Code, Message string
	// RetryAfter is sent as the header of HTTP; no page states that EC2 does.
	RetryAfter time.Duration
}

// Script lets faults happen, in this order for each action.
func (c *Cloud) Script(faults ...Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, faults...)
}

// fault takes the next fault of an action.
func (c *Cloud) fault(action string) Fault {
	at := slices.IndexFunc(c.faults, func(f Fault) bool { return f.Action == action })
	if at < 0 {
		return Fault{}
	}
	f := c.faults[at]
	c.faults = slices.Delete(c.faults, at, at+1)
	return f
}

// refusal is an error that the API answers with.
type refusal struct {
	status        int
	code, message string
	wait          time.Duration
}

func (f Fault) refusal() *refusal { return &refusal{f.Status, f.Code, f.Message, f.RetryAfter} }

// invalid is a client error with status 400, as most of the table have it.
func invalid(code, message string) *refusal {
	return &refusal{status: http.StatusBadRequest, code: code, message: message}
}

// write answers in the form of "errors-overview", example error response.
func (r *refusal) write(w http.ResponseWriter, requestID string) {
	if r.wait > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(r.wait.Seconds())))
	}
	type wireError struct{ Code, Message string }
	body, err := xml.Marshal(struct {
		XMLName   xml.Name    `xml:"Response"`
		Errors    []wireError `xml:"Errors>Error"`
		RequestID string
	}{Errors: []wireError{{r.code, r.message}}, RequestID: requestID})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	send(w, r.status, body)
}

package ec2fake

import (
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// version is the API version that requests must name.
const version = "2016-11-15"

// action is one action of the API.
type action struct {
	run   func(*Cloud, call) (response, *refusal)
	takes []string // parameters; each stands for all that begin with it and a dot
}

func actions() map[string]action {
	return map[string]action{
		"RunInstances": {runInstances, []string{
			"ClientToken", "ImageId", "InstanceType", "MinCount", "MaxCount", "UserData", "InstanceInitiatedShutdownBehavior",
			"MetadataOptions", "BlockDeviceMapping", "NetworkInterface", "SubnetId", "SecurityGroupId", "Placement", "TagSpecification",
		}},
		"DescribeInstances":             {describeInstances, []string{"InstanceId", "Filter", "MaxResults", "NextToken"}},
		"TerminateInstances":            {terminateInstances, []string{"InstanceId"}},
		"CreateTags":                    {createTags, []string{"ResourceId", "Tag"}},
		"DescribeVolumes":               {describeVolumes, []string{"VolumeId", "Filter", "MaxResults", "NextToken"}},
		"DeleteVolume":                  {deleteVolume, []string{"VolumeId"}},
		"DescribeNetworkInterfaces":     {describeInterfaces, []string{"NetworkInterfaceId", "Filter", "MaxResults", "NextToken"}},
		"DeleteNetworkInterface":        {deleteInterface, []string{"NetworkInterfaceId"}},
		"DescribeSubnets":               {describeSubnets, []string{"SubnetId", "Filter", "MaxResults", "NextToken"}},
		"DescribeImages":                {describeImages, []string{"ImageId", "Owner", "Filter", "MaxResults", "NextToken"}},
		"DescribeInstanceTypes":         {describeTypes, []string{"InstanceType", "Filter", "MaxResults", "NextToken"}},
		"DescribeInstanceTypeOfferings": {describeOfferings, []string{"LocationType", "Filter", "MaxResults", "NextToken"}},
		"GetConsoleOutput":              {consoleOutput, []string{"InstanceId", "Latest"}},
	}
}

// call is one request.
type call struct {
	action string
	form   form
	now    time.Time
	fault  Fault
}

// response is the body of an answer.
type response interface{ stamp(requestID string) }

// envelope is what every answer begins with.
type envelope struct {
	RequestID string `xml:"requestId"`
}

func (e *envelope) stamp(requestID string) { e.RequestID = requestID }

// done is the answer of actions that return nothing.
type done struct {
	envelope
	Return bool `xml:"return"`
}

// ServeHTTP implements [http.Handler].
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return
	}
	values, err := url.ParseQuery(string(body))
	if err != nil {
		invalid("MalformedQueryString", "The query string contains a syntax error.").write(w, "")
		return
	}
	f := form{}
	for key, v := range values {
		f[key] = v[0]
	}
	c.mu.Lock()
	requestID := fmt.Sprintf("00000000-0000-0000-0000-%012x", len(c.calls)+c.calls[f["Action"]])
	c.calls[f["Action"]]++
	fault := c.fault(f["Action"])
	c.mu.Unlock()
	switch fault.Effect {
	case Hangs:
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	case Gateway:
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, "<html><body><h1>404 Not Found</h1></body></html>")
		return
	}
	w.Header().Set("X-Amzn-Requestid", requestID)
	c.mu.Lock()
	res, refused := c.serve(r, body, f, fault)
	c.mu.Unlock()
	if refused != nil {
		refused.write(w, requestID)
		return
	}
	res.stamp(requestID)
	deliver(w, f["Action"], res, fault.Effect)
}

// serve does the call, under the lock.
func (c *Cloud) serve(r *http.Request, body []byte, f form, fault Fault) (response, *refusal) {
	if refused := c.signed(r, body); refused != nil {
		return nil, refused
	}
	a, known := actions()[f["Action"]]
	if !known || f["Version"] != version {
		return nil, invalid("InvalidAction", fmt.Sprintf("The action %s is not valid for this web service.", f["Action"]))
	}
	for key := range f {
		if !a.knows(key) {
			return nil, invalid("UnknownParameter", fmt.Sprintf("The parameter %s is not recognized", key))
		}
	}
	if fault.Effect == Refused {
		return nil, fault.refusal()
	}
	// "DryRunOperation" of "errors-overview": 412 is what the service is seen to send.
	if f["DryRun"] == "true" {
		return nil, &refusal{
			status: http.StatusPreconditionFailed, code: "DryRunOperation",
			message: "Request would have succeeded, but DryRun flag is set.",
		}
	}
	return a.run(c, call{action: f["Action"], form: f, now: c.advance(), fault: fault})
}

func (a action) knows(key string) bool {
	return slices.ContainsFunc(append([]string{"Action", "Version", "DryRun"}, a.takes...), func(p string) bool {
		return key == p || strings.HasPrefix(key, p+".")
	})
}

// deliver sends an answer, or fails to.
func deliver(w http.ResponseWriter, action string, res response, effect Effect) {
	var buf strings.Builder
	buf.WriteString(xml.Header)
	name := xml.StartElement{
		Name: xml.Name{Local: action + "Response"},
		Attr: []xml.Attr{{Name: xml.Name{Local: "xmlns"}, Value: "http://ec2.amazonaws.com/doc/" + version + "/"}},
	}
	if err := xml.NewEncoder(&buf).EncodeElement(res, name); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	body := []byte(buf.String())
	switch effect {
	case Lost:
		panic(http.ErrAbortHandler)
	case ErrorAfter:
		(&refusal{status: http.StatusInternalServerError, code: "InternalError", message: "An internal error has occurred."}).write(w, "")
	case Cut:
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		send(w, http.StatusOK, body[:len(body)/2])
		panic(http.ErrAbortHandler)
	default:
		send(w, http.StatusOK, body)
	}
}

func send(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// form is the parameters of a call ("Query requests": lists are numbered from
// 1, structures are joined with dots).
type form map[string]string

// list reads Name.1, Name.2 and so on.
func (f form) list(name string) []string {
	var all []string
	for n := 1; ; n++ {
		v, ok := f[fmt.Sprintf("%s.%d", name, n)]
		if !ok {
			return all
		}
		all = append(all, v)
	}
}

// items reads the structures Name.1, Name.2 and so on.
func (f form) items(name string) []form {
	var all []form
	for n := 1; ; n++ {
		item := f.under(fmt.Sprintf("%s.%d", name, n))
		if len(item) == 0 {
			return all
		}
		all = append(all, item)
	}
}

// under is what stands below a name.
func (f form) under(name string) form {
	inner := form{}
	for key, v := range f {
		if rest, ok := strings.CutPrefix(key, name+"."); ok {
			inner[rest] = v
		}
	}
	return inner
}

// flag reads a boolean, with its default.
func (f form) flag(name string, otherwise bool) bool {
	v, ok := f[name]
	if !ok {
		return otherwise
	}
	return v == "true"
}

// number reads an integer, with its default.
func (f form) number(name string, otherwise int) (int, *refusal) {
	text, ok := f[name]
	if !ok {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, invalid("InvalidParameterValue", fmt.Sprintf("Value (%s) for parameter %s is invalid.", text, name))
	}
	return n, nil
}

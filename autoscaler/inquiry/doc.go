// Package inquiry is the controller's door for people: it answers what somebody
// may ask about their own work, and shows nothing of anybody else's.
//
// The promise: who asks is what the API server says of their token, or what a
// certificate of the cluster's authority says; what they may ask is what the API
// server lets them do to the very object that they name, and that is asked each
// time, before it is looked whether the object exists. Nobody needs a right on
// nodes, offers or the ledger. Nothing here changes anything.
//
// The way in is the API server's service proxy, since a laptop with a kubeconfig
// reaches nothing else. A proxy of the API server takes the caller's identity
// away and checks no certificate behind it; so the proxied connection is only a
// tunnel, and inside it caller and controller speak TLS with each other: the
// caller checks the controller against the authority that the controller
// publishes in a ConfigMap, and shows it what it shows the API server, token or
// client certificate. Who stands between them sees neither.
//
// Vocabulary: a subject is the object that is asked about; the tunnel is the
// outer connection, the desk the inner one; the board is the newest state with
// its plan, as the leader's cycle has hung it up.
package inquiry

// What of the installation both ends know by name. The chart lets everybody who
// is known to the API server read the ConfigMap and use this one port.
const (
	// ServiceName is the Service, and the name in the desk's certificate.
	ServiceName = "spillway-api"
	// ConfigMapName holds under AuthorityKey the authority (PEM) of the desk.
	ConfigMapName = "spillway-api"
	AuthorityKey  = "ca.crt"

	portName    = "api"
	protocol    = "spillway-desk" // of the upgrade
	tunnelPath  = "/tunnel"
	mostRequest = 1 << 20 // bytes of a manifest
	mostHeaders = 64 << 10
)

// Resource is where a kind of subject lives in the API.
type Resource struct {
	Kind   string // as owner references name it: Job
	Group  string // batch
	Plural string // jobs
}

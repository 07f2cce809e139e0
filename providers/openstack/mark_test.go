package openstack

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"spillway.dev/spillway/providers"
)

// Nova's pattern for keys of metadata, measured; EC2 allows no slash in keys.
// cases: D-45 aws/karpenter-provider-aws#1527
func TestMarksSurviveTheCloud(t *testing.T) {
	key := regexp.MustCompile(`^[a-zA-Z0-9-]{1,128}$`)
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[ -~]{1,20}`)
		m := mark{
			installation: text.Draw(t, "installation"), token: text.Draw(t, "token"), burst: text.Draw(t, "burst"),
			tenant: text.Draw(t, "tenant"), kind: text.Draw(t, "type"),
			expires: time.Unix(rapid.Int64Range(1, 1<<33).Draw(t, "expires"), 0).UTC(),
		}
		data := m.metadata()
		for k, v := range data {
			if !key.MatchString(k) || len(v) > maxText {
				t.Fatalf("metadata %q: %q is not accepted everywhere", k, v)
			}
		}
		if got, ok := readMetadata(data); !ok || got != m {
			t.Fatalf("metadata: got %+v, want %+v", got, m)
		}
		if got, ok := readText(m.text()); !ok || got != m {
			t.Fatalf("text: got %+v, want %+v", got, m)
		}
	})
}

func TestForeignMarks(t *testing.T) {
	for _, text := range []string{"", "spillway", "spillway:", "spillway:%zz", "node of somebody", "spillway:t=tok-1", "spillway:i=x"} {
		if m, ok := readText(text); ok {
			t.Errorf("%q passes for our mark: %+v", text, m)
		}
	}
	if m, ok := readMetadata(map[string]string{keyToken: "tok-1"}); ok {
		t.Errorf("metadata without an installation passes for our mark: %+v", m)
	}
}

func TestRequestsThatCanNeverSucceed(t *testing.T) {
	good := providers.Request{
		Token: "tok-1", Installation: "home", Burst: "uid", Tenant: "team", Name: "spw-1", Expires: time.Unix(1_800_000_000, 0),
		UserData: make([]byte, 49_149),
	}
	d := &Driver{config: Config{Installation: "home"}}
	if err := d.checkRequest(good); err != nil {
		t.Fatalf("the longest good request: %v", err)
	}
	for name, change := range map[string]func(*providers.Request){
		"another installation": func(r *providers.Request) { r.Installation = "away" },
		"no stamp":             func(r *providers.Request) { r.Expires = time.Time{} },
		"no token":             func(r *providers.Request) { r.Token = "" },
		"a token with a slash": func(r *providers.Request) { r.Token = "a/b" },
		"a long token":         func(r *providers.Request) { r.Token = strings.Repeat("x", 65) },
		"no name":              func(r *providers.Request) { r.Name = "" },
		"a mark too long":      func(r *providers.Request) { r.Tenant = strings.Repeat("x", 200) },
		"user data too long":   func(r *providers.Request) { r.UserData = make([]byte, 49_150) }, // Nova: 65535 of base64
	} {
		t.Run(name, func(t *testing.T) {
			r := good
			change(&r)
			if err := d.checkRequest(r); err == nil {
				t.Error("accepted")
			}
		})
	}
}

// cases: D-17 kubernetes/kops#6650
func TestExactly(t *testing.T) {
	if got, want := exactly("node-1.a"), `^node-1\.a$`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestReadLogin(t *testing.T) {
	yaml := `clouds:
  openstack:
    region_name: elsewhere
    interface: internal
    auth: {auth_url: https://id.example/v3, application_credential_id: a, application_credential_secret: b}
  second:
    auth: {auth_url: https://two.example/v3, username: u, password: p, project_name: x, user_domain_name: Default}
  empty: {}
`
	t.Setenv("OS_CLOUD", "second") // the process's own surroundings don't count
	t.Setenv("OS_REGION_NAME", "from-the-environment")
	t.Setenv("OS_INTERFACE", "admin")
	tests := map[string]struct {
		secret map[string]string
		url    string // "": refused
		words  string
	}{
		"the usual name":        {secret: map[string]string{"clouds.yaml": yaml}, url: "https://id.example/v3"},
		"another name":          {secret: map[string]string{"clouds.yaml": yaml, "cloud": "second\n"}, url: "https://two.example/v3"},
		"a name that isn't in":  {secret: map[string]string{"clouds.yaml": yaml, "cloud": "third"}, words: `"third"`},
		"no address":            {secret: map[string]string{"clouds.yaml": yaml, "cloud": "empty"}, words: "auth_url"},
		"no file":               {secret: map[string]string{"token": "x"}, words: "clouds.yaml"},
		"no YAML":               {secret: map[string]string{"clouds.yaml": "{"}, words: "clouds.yaml"},
		"an authority, no text": {secret: map[string]string{"clouds.yaml": yaml, "ca.crt": "x"}, words: "ca.crt"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			secret := map[string][]byte{}
			for k, v := range tt.secret {
				secret[k] = []byte(v)
			}
			login, err := ReadLogin(secret, "here")
			if tt.url == "" {
				if err == nil || !strings.Contains(err.Error(), tt.words) {
					t.Errorf("got %v, want an error that names %s", err, tt.words)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := []any{login.Auth.IdentityEndpoint, login.Endpoint.Region, login.Auth.AllowReauth}
			if diff := cmp.Diff([]any{tt.url, "here", true}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestNewNamesAllThatIsMissing(t *testing.T) {
	_, err := New(Config{Provider: "west"})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"region", "installation", "image", "network", "auth_url"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
}

func TestCloudsFile(t *testing.T) {
	all, err := readClouds()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		t.Run(c.Name, func(t *testing.T) {
			if _, err := c.cloud(); err != nil {
				t.Error(err)
			}
			if _, err := time.Parse(time.DateOnly, c.Date); err != nil || c.Source == "" {
				t.Errorf("source %q, date %q: every fact has both", c.Source, c.Date)
			}
			if len(c.Hosts) == 0 {
				t.Error("no host leads to it")
			}
			for flavor, gpu := range c.GPUs {
				if gpu.Model == "" || gpu.Count < 1 {
					t.Errorf("flavor %s: %+v", flavor, gpu)
				}
			}
		})
	}
}

func TestKnownCloud(t *testing.T) {
	for address, hours := range map[string]bool{
		"https://auth.cloud.ovh.net/v3":                 true,
		"https://api.pub1.infomaniak.cloud/identity/v3": false,
		"https://iam.eu-de.otc.t-systems.com:443/v3":    true,
		"https://auth.cloud.ovh.net.example/v3":         true, // nobody's: the dearest rule
		"https://evilinfomaniak.cloud/v3":               true,
	} {
		c, err := knownCloud(address)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.meter.ClockAligned; got != hours {
			t.Errorf("%s: by clock hours %v, want %v", address, got, hours)
		}
		if !c.meter.BilledWhenStopped {
			t.Errorf("%s: powering off does not end the bill (cases: D-29)", address)
		}
	}
	if _, err := knownCloud("not a url"); err == nil {
		t.Error("an address that is none is accepted")
	}
}

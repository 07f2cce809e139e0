package ec2

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"spillway.dev/spillway/providers"
)

func validConfig() Config {
	return Config{
		Provider: "p", Region: "eu-west-3", Country: "FR", Installation: "home", Image: "ami-1", Subnets: []string{"subnet-1"},
		Login: Login{AccessKey: "a", SecretKey: "s"},
	}
}

// Settings that can't be right are told by name, before any call.
func TestConfigRefusals(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Config)
		words  []string
	}{
		"nothing":         {func(c *Config) { *c = Config{} }, []string{"provider", "region", "installation", "image", "subnets", "accessKey", "secretKey"}},
		"a subnet's name": {func(c *Config) { c.Subnets = []string{"machines"} }, []string{`"machines"`, "subnet-"}},
		"a group's name":  {func(c *Config) { c.SecurityGroups = []string{"gpu"} }, []string{`"gpu"`, "sg-"}},
		// A region of another continent, or a typo: its law and its price are not known.
		"a region elsewhere": {func(c *Config) { c.Region = "us-east-1" }, []string{"us-east-1", "endpoint"}},
		"another country":    {func(c *Config) { c.Country = "DE" }, []string{"eu-west-3", "FR", "DE"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := validConfig()
			tt.change(&c)
			_, err := New(c)
			for _, word := range tt.words {
				if err == nil || !strings.Contains(err.Error(), word) {
					t.Errorf("%v does not say %s", err, word)
				}
			}
		})
	}
}

// asked keeps where calls go, and answers none.
type asked struct{ hosts []string }

// RoundTrip implements [http.RoundTripper].
func (a *asked) RoundTrip(r *http.Request) (*http.Response, error) {
	a.hosts = append(a.hosts, r.URL.Host)
	return nil, errors.New("no network here")
}

// Each known region has its endpoint, that of its own partition.
func TestRegions(t *testing.T) {
	for region, want := range map[string]struct{ country, host string }{
		"eu-central-1":   {"DE", "ec2.eu-central-1.amazonaws.com"},
		"eu-central-2":   {"CH", "ec2.eu-central-2.amazonaws.com"},
		"eusc-de-east-1": {"DE", "ec2.eusc-de-east-1.amazonaws.eu"},
	} {
		t.Run(region, func(t *testing.T) {
			way := &asked{}
			c := validConfig()
			c.Region, c.Country, c.HTTP = region, want.country, &http.Client{Transport: way}
			d, err := New(c)
			if err != nil {
				t.Fatal(err)
			}
			_, err = d.List(t.Context())
			mustBe(t, err, providers.OutcomeUnknown)
			if len(way.hosts) != 1 || way.hosts[0] != want.host {
				t.Errorf("asked %q, want %s once", way.hosts, want.host)
			}
		})
	}
}

// A region that nobody has described is billed by the dearest rule.
func TestMeter(t *testing.T) {
	known, err := meterOf(validConfig())
	if err != nil || known.Billed(time.Unix(0, 0), time.Unix(10, 0)) != time.Minute {
		t.Errorf("%+v, %v", known, err)
	}
	c := validConfig()
	c.Region, c.Endpoint = "private-1", "https://ec2.example"
	other, err := meterOf(c)
	if err != nil || other != dearest() {
		t.Errorf("%+v, %v", other, err)
	}
}

// The data have a source and a date each.
func TestClouds(t *testing.T) {
	all, err := readClouds()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if _, err := c.meter(); err != nil {
			t.Error(err)
		}
		if _, err := time.Parse(time.DateOnly, c.Date); err != nil || c.Source == "" || len(c.Regions) == 0 {
			t.Errorf("%s: date %q, source %q", c.Name, c.Date, c.Source)
		}
	}
}

func TestReadLogin(t *testing.T) {
	login, err := ReadLogin(map[string][]byte{"accessKey": []byte("AKID\n"), "secretKey": []byte(" s "), "sessionToken": []byte("t")})
	if err != nil || login.AccessKey != "AKID" || login.SecretKey != "s" || login.SessionToken != "t" {
		t.Errorf("%+v, %v", login, err)
	}
	for name, secret := range map[string]map[string][]byte{
		"accessKey": {"secretKey": []byte("s")},
		"secretKey": {"accessKey": []byte("a")},
		"ca.crt":    {"accessKey": []byte("a"), "secretKey": []byte("s"), "ca.crt": []byte("no PEM")},
	} {
		if _, err := ReadLogin(secret); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A wrong key is told as such, not as an empty account.
func TestWrongKey(t *testing.T) {
	w := newWorld(t)
	d := w.dial(func(c *Config) { c.Login.SecretKey = "another" })
	_, err := d.List(t.Context())
	mustBe(t, err, providers.Unauthorized)
}

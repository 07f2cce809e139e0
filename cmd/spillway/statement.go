package main

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"time"

	"github.com/spf13/cobra"

	"spillway.dev/spillway/nodeagent/wipe"
	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
)

// document is a statement with what it was made of, as it is given out.
type document struct {
	Operator     string                 `json:"operator,omitzero"`
	Statement    quota.Statement        `json:"statement"`
	Ledger       source                 `json:"ledger"`
	Closed       *quota.Closed          `json:"closed,omitempty"`       // only of a month that is closed
	Certificates map[string]certificate `json:"certificates,omitempty"` // by burst; only where records were looked at
	records      bool
}

// source names the state of the ledger that a statement was made of. The same
// state gives the same statement.
type source struct {
	Rows int64     `json:"rows"`
	Head string    `json:"head"` // hash of the last row
	Last time.Time `json:"last"` // its time
}

// certificate refers to the wipe certificate of a burst, whose signature was
// checked.
type certificate struct {
	ID     string     `json:"id"`
	Level  wipe.Level `json:"level"`
	SHA256 string     `json:"sha256"` // of the file
}

type statementFlags struct{ tenant, month, zone, lang, records, trust, operator, output string }

func statementCommand(file *location) *cobra.Command {
	var x statementFlags
	c := &cobra.Command{
		Use: "statement", Short: "Write what a tenant used and was charged in a month, as one page to print or as JSON", Args: noArgs,
		Long: `statement writes one self-contained HTML page (or JSON) to standard output. Months are those
of a time zone: October 2026 has 745 hours in Europe/Berlin. The page names the state of the
ledger that it was made of; the same state gives the same page.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case x.tenant == "" || x.month == "":
				return usageError{fmt.Errorf("ledger statement: --tenant and --month are needed, for example --tenant t-7f31 --month 2026-11")}
			case (x.records == "") != (x.trust == ""):
				return usageError{fmt.Errorf("ledger statement: --records and --trust belong together: the folder with wipe certificates, and the installation's public key for them, certificate.pub")}
			case x.lang != "de" && x.lang != "en":
				return usageError{fmt.Errorf("ledger statement: --lang %q is unknown: say de or en", x.lang)}
			case x.output != "html" && x.output != "json":
				return usageError{fmt.Errorf("ledger statement: -o %q is unknown: say html or json", x.output)}
			}
			if _, err := quota.Month(x.zone, x.month); err != nil {
				return usageError{fmt.Errorf("ledger statement: %w", err)}
			}
			return viewing(cmd, *file, func(ctx context.Context, v *ledger.View) error {
				d, err := x.document(ctx, v, *file)
				if err != nil {
					return err
				}
				if x.output == "json" {
					return show(cmd, "json", d, "")
				}
				return writePage(cmd.OutOrStdout(), d, x.lang)
			})
		},
	}
	f := c.Flags()
	f.StringVar(&x.tenant, "tenant", "", "`ID` of the tenant")
	f.StringVar(&x.month, "month", "", "local `MONTH`, as 2026-11")
	f.StringVar(&x.zone, "zone", quota.DefaultZone, "time `ZONE` of the month")
	f.StringVar(&x.lang, "lang", "en", "language of the page: de or en")
	f.StringVar(&x.records, "records", "", "`DIR` with the records of bursts: the page names their wipe certificates")
	f.StringVar(&x.trust, "trust", "", "public key `FILE` that the certificates are checked against")
	f.StringVar(&x.operator, "operator", "", "`NAME` of the unit that charges the tenant")
	f.StringVarP(&x.output, "output", "o", "html", "html or json")
	return c
}

// document reads the ledger and makes the statement.
func (x statementFlags) document(ctx context.Context, v *ledger.View, file location) (document, error) {
	p, err := quota.Month(x.zone, x.month)
	if err != nil {
		return document{}, err
	}
	s, err := stateOf(ctx, v, x.month, x.zone)
	if err != nil {
		return document{}, err
	}
	hours, err := v.UsageHours(ctx, x.tenant, p.Start.Truncate(time.Hour), p.End.Truncate(time.Hour))
	if err != nil {
		return document{}, err
	}
	made, err := quota.NewStatement(quota.StatementInput{
		Tenant: x.tenant, Month: x.month, Zone: x.zone, Book: s.Book, Accounts: accountsOf(s), Usage: hours,
	})
	if err != nil {
		return document{}, err
	}
	if !known(s, x.tenant) && len(hours) == 0 {
		return document{}, fmt.Errorf("ledger %s knows no tenant %q: give the id that the ledger uses, as in \"ledger budget\"", file, x.tenant)
	}
	d := document{Operator: x.operator, Statement: made, Ledger: source{Rows: s.Rows, Head: s.Head, Last: s.Last}}
	if closed, ok := s.Book.ClosedMonth(x.month, x.zone); ok {
		d.Closed = &closed
	}
	if x.records != "" {
		d.records = true
		d.Certificates, err = x.certificates(made.Bursts)
	}
	return d, err
}

// stateOf is the ledger now, or for a month that is closed the ledger at its
// closing: what was booked later does not belong to it.
func stateOf(ctx context.Context, v *ledger.View, month, zone string) (ledger.State, error) {
	s, err := v.State(ctx)
	if err != nil {
		return s, err
	}
	if closed, ok := s.Book.ClosedMonth(month, zone); ok {
		return v.StateUntil(ctx, closed.At)
	}
	return s, nil
}

// known reports whether the tenant has a budget or a burst.
func known(s ledger.State, tenant string) bool {
	for _, b := range s.Book.Budgets {
		if b.Scope == quota.ScopeTenant && b.Subject == tenant {
			return true
		}
	}
	for _, a := range s.Accounts {
		if a.Reservation.Tenant == tenant {
			return true
		}
	}
	return false
}

// certificates looks up and checks the certificate of every burst in the folder
// of records. A burst without one is left out; one that is not to be trusted, or
// is another burst's, ends it.
func (x statementFlags) certificates(bursts []quota.StatementBurst) (map[string]certificate, error) {
	pub, err := publicKey(x.trust)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(x.records)
	if err != nil {
		return nil, fmt.Errorf("records: %w", err)
	}
	defer func() { _ = root.Close() }() // only read
	found := make(map[string]certificate)
	for _, b := range bursts {
		name := path.Join(b.Burst, "certificate.json")
		data, err := root.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("records: %w", err)
		}
		if found[b.Burst], err = checkCertificate(pub, b.Burst, data); err != nil {
			return nil, fmt.Errorf("records: %s: %w", name, err)
		}
	}
	return found, nil
}

func checkCertificate(pub ed25519.PublicKey, burst string, data []byte) (certificate, error) {
	var signed wipe.SignedCertificate
	if err := json.Unmarshal(data, &signed); err != nil {
		return certificate{}, err
	}
	c, err := wipe.VerifyCertificate(pub, signed)
	if err != nil {
		return certificate{}, err
	}
	if c.Burst != burst {
		return certificate{}, fmt.Errorf("it is the certificate of burst %q", c.Burst)
	}
	sum := sha256.Sum256(data)
	return certificate{ID: c.ID, Level: c.Level, SHA256: hex.EncodeToString(sum[:])}, nil
}

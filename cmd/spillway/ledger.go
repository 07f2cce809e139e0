package main

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"spillway.dev/spillway/quota/ledger"
)

// location is the file of a ledger, or the URL of one in PostgreSQL. It prints
// without what may be secret in it.
type location string

func (l location) String() string { return ledger.Name(string(l)) }

// Set and Type make it a flag.
func (l *location) Set(name string) error {
	*l = location(name)
	return nil
}

func (location) Type() string { return "string" }

// ledgerCommand holds all that reads a ledger, and the few commands that write
// one. Reading opens it for reading only: it books nothing and fences no
// controller off.
func ledgerCommand() *cobra.Command {
	file := new(location)
	c := group("ledger", "Read and check the quota and billing ledger",
		balanceCommand(file), budgetCommand(file), usageCommand(file), exposureCommand(file), statementCommand(file),
		exportCommand(file), importCommand(file), verifyCommand(file), headCommand(file), closeCommand(file), correctCommand(file), acceptOverrunCommand(file))
	const usage = "`FILE` of the ledger, or postgres://USER@HOST/DATABASE with the password in PGPASSFILE"
	c.PersistentFlags().Var(file, "ledger", usage)
	c.PersistentFlags().Var(file, "file", usage) // its first name
	_ = c.PersistentFlags().MarkHidden("file")   // it exists
	return c
}

// reading calls f with a ledger that is open for reading only.
func reading(cmd *cobra.Command, file location, f func(*ledger.Ledger) error) error {
	if file == "" {
		return usageError{fmt.Errorf("%s: --ledger is missing: name the ledger, for example demo-out/ledger.db", cmd.CommandPath())}
	}
	l, err := ledger.Open(cmd.Context(), string(file), ledger.Options{Now: time.Now, ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // nothing was written
	return f(l)
}

// viewing is reading, at one moment of the ledger.
func viewing(cmd *cobra.Command, file location, f func(context.Context, *ledger.View) error) error {
	return reading(cmd, file, func(l *ledger.Ledger) error {
		return l.View(cmd.Context(), func(v *ledger.View) error { return f(cmd.Context(), v) })
	})
}

func verifyCommand(file *location) *cobra.Command {
	var output, heads, trust string
	c := &cobra.Command{
		Use: "verify", Short: "Recompute the whole ledger from its journal", Args: noArgs,
		Long: `verify recomputes everything from the journal and names what is wrong with it.

A journal alone can't show that it was written anew as a whole, or that rows at its end were
cut off. With --heads, the file in which somebody else has kept what "ledger head" printed,
and --trust, the public key of who signed it, verify shows that too.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (heads == "") != (trust == "") {
				return usageError{fmt.Errorf("ledger verify: --heads and --trust belong together: the file of kept heads, and the public key to trust")}
			}
			kept, err := keptHeads(heads, trust)
			if err != nil {
				return err
			}
			return reading(cmd, *file, func(l *ledger.Ledger) error {
				report, err := l.Verify(cmd.Context(), kept...)
				if err != nil {
					return err
				}
				if err := show(cmd, output, report, report.String()); err != nil {
					return err
				}
				if !report.OK {
					return fmt.Errorf("ledger %s is not sound: see the findings; stop spending until they are explained", *file)
				}
				return nil
			})
		},
	}
	c.Flags().StringVar(&heads, "heads", "", "`FILE` of signed heads that was kept elsewhere")
	c.Flags().StringVar(&trust, "trust", "", "public key `FILE` (PEM) of who signed them")
	c.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return c
}

// keptHeads reads signed heads; no file is no heads.
func keptHeads(file, trust string) ([]ledger.Head, error) {
	if file == "" {
		return nil, nil
	}
	pub, err := publicKey(trust)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("heads: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	kept, err := ledger.ReadHeads(f, pub)
	if err != nil {
		return nil, fmt.Errorf("heads %s: %w", file, err)
	}
	return kept, nil
}

func headCommand(file *location) *cobra.Command {
	var key string
	c := &cobra.Command{
		Use: "head", Short: "Sign the hash of the newest row, for somebody else to keep", Args: noArgs,
		Long: `head replays the journal and signs the hash of its newest row with an ed25519 key. Keep the
lines that it prints where the operator of the ledger can't change them: with them and the
public key, "ledger verify --heads FILE --trust KEY" shows that history was not rewritten.

  openssl genpkey -algorithm ed25519 -out heads.key
  openssl pkey -in heads.key -pubout -out heads.pub
  spillway ledger head --ledger ledger.db --key heads.key >> heads.jsonl`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if key == "" {
				return usageError{fmt.Errorf("ledger head: --key is missing: name the private key to sign with")}
			}
			private, err := privateKey(key)
			if err != nil {
				return err
			}
			return viewing(cmd, *file, func(ctx context.Context, v *ledger.View) error {
				s, err := v.State(ctx)
				if err != nil {
					return err
				}
				if s.Rows == 0 {
					return fmt.Errorf("ledger %s has no rows yet: there is nothing to sign", *file)
				}
				line, err := json.Marshal(ledger.SignHead(private, s.Newest()))
				if err != nil {
					return err
				}
				cmd.Println(string(line))
				return nil
			})
		},
	}
	c.Flags().StringVar(&key, "key", "", "private key `FILE` (PEM, ed25519)")
	return c
}

// privateKey reads an ed25519 key as openssl writes it.
func privateKey(file string) (ed25519.PrivateKey, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("private key: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("private key %s: no PEM block in it", file)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("private key %s: %w", file, err)
	}
	private, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("private key %s: a %T, not an ed25519 key", file, parsed)
	}
	return private, nil
}

func importCommand(file *location) *cobra.Command {
	return &cobra.Command{
		Use: "import EXPORT", Short: "Make a new ledger from an exported one, with the chain intact",
		Long: "import reads what \"ledger export\" wrote (- is standard input) into a ledger without rows, and\nverifies all of it before it keeps any of it. The new ledger ends with the same hash, whether it\nlies in a file or in PostgreSQL.",
		Args: exactly("the file of an export, or -"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if *file == "" {
				return usageError{fmt.Errorf("ledger import: --ledger is missing: name the file of the new ledger")}
			}
			from := cmd.InOrStdin()
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return fmt.Errorf("export: %w", err)
				}
				defer func() { _ = f.Close() }() // only read
				from = f
			}
			l, err := ledger.Open(cmd.Context(), string(*file), ledger.Options{Now: time.Now})
			if err != nil {
				return err
			}
			defer func() { _ = l.Close() }() // what was written is committed
			report, err := l.Import(cmd.Context(), from)
			if err != nil {
				return err
			}
			cmd.Printf("%d rows imported into %s, verified\nhead %s\n", report.Rows, *file, report.Head)
			return nil
		},
	}
}

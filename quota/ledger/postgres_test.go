//go:build postgres

package ledger_test

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"spillway.dev/spillway/e2e/postgres"
	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
)

// ownServer is a server that a test may break.
func ownServer(t *testing.T) *postgres.Server {
	t.Helper()
	s, err := postgres.Start(t.Context())
	return stopped(t, s, err)
}

func stopped(t *testing.T, s *postgres.Server, err error) *postgres.Server {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// onServer is a fixture whose ledger is reached under a URL.
func onServer(t *testing.T, name string) *fixture {
	t.Helper()
	f := &fixture{t: t, path: name, now: time.Date(2026, 10, 5, 8, 0, 0, 0, time.UTC)}
	f.Ledger = f.open()
	f.lead()
	f.must(f.SetBudgets(f.ctx(), f.epoch, []quota.Budget{
		{ID: "all", Scope: quota.ScopeGlobal, Window: quota.WindowMonth, Limit: eur("1000000"), Hard: true},
	}))
	return f
}

// told checks what a person is told: one line with the thing, the reason and the
// remedy, and no password.
func told(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("error is %v, want %q", err, want)
	}
	if text := err.Error(); strings.Contains(text, postgres.Password) || strings.Contains(text, "\n") || !strings.HasPrefix(text, "ledger postgres://") {
		t.Errorf("a person is told %q", text)
	}
}

func run(t *testing.T, name string, statements ...string) {
	t.Helper()
	db := behind(t, name)
	for _, s := range statements {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// The server is killed in the middle of everything, again and again: what was
// answered with yes stands, what was answered with no is not there, and the same
// process goes on when the server is back.
func TestTheServerIsKilledInTheMiddle(t *testing.T) {
	s := ownServer(t)
	f := onServer(t, schemaOn(t, s))
	for round := range 6 {
		var yes, no, open sync.Map
		var wg sync.WaitGroup
		answered := make(chan struct{}, 1000)
		for w := range 8 {
			wg.Go(func() {
				for i := 0; ; i++ {
					uid := fmt.Sprintf("%d-%d-%d", round, w, i)
					switch _, err := f.Reserve(f.ctx(), f.epoch, burst(uid, "1")); {
					case err == nil:
						yes.Store(uid, true)
						answered <- struct{}{}
						continue
					case errors.Is(err, ledger.ErrOutcomeUnknown):
						open.Store(uid, err)
					default:
						no.Store(uid, err)
					}
					return
				}
			})
		}
		for range 20 + 10*round {
			<-answered
		}
		f.must(s.Kill())
		go func() {
			for range answered { // nobody waits for room
			}
		}()
		_, err := f.Reserve(f.ctx(), f.epoch, burst(fmt.Sprint("dead-", round), "1"))
		if err == nil {
			t.Error("a dead server has booked")
		}
		no.Store(fmt.Sprint("dead-", round), err)
		f.must(s.Launch(f.ctx()))
		wg.Wait()
		close(answered)
		book, err := f.Book(f.ctx())
		f.must(err)
		each(&yes, func(uid string, _ any) {
			if book.Open[uid].State != quota.Reserved {
				t.Errorf("burst %s was answered with yes and is gone", uid)
			}
		})
		each(&no, func(uid string, err any) {
			if _, booked := book.Open[uid]; booked {
				t.Errorf("burst %s is booked, and was answered with %v", uid, err)
			}
			told(t, err.(error), "nothing was booked")
		})
		each(&open, func(uid string, err any) { t.Errorf("the server was back at once, and burst %s got %v", uid, err) })
		_, err = f.Reserve(f.ctx(), f.epoch, burst(fmt.Sprint("after-", round), "1"))
		f.must(err)
	}
	f.verified()
}

func each(m *sync.Map, f func(string, any)) {
	m.Range(func(k, v any) bool { f(k.(string), v); return true })
}

// A commit whose answer is lost is looked up, never sent again.
func TestACommitWithoutAnAnswer(t *testing.T) {
	name := fresh(t)
	for cutAt, tt := range map[postgres.Cut]struct {
		forGood bool
		booked  bool
		err     string
	}{
		postgres.AfterCommit:  {booked: true},
		postgres.BeforeCommit: {err: "the connection broke before the commit; nothing was booked: try again"},
	} {
		t.Run(tt.err, func(t *testing.T) {
			line, f := overLine(t, name)
			uid := fmt.Sprint("cut-", cutAt)
			rows := f.verified().Rows
			line.Arm(cutAt, false)
			r, err := f.Reserve(f.ctx(), f.epoch, burst(uid, "1"))
			if tt.booked {
				f.must(err)
				rows++
				if r.Seq != rows {
					t.Errorf("booked as row %d, want %d", r.Seq, rows)
				}
			} else {
				told(t, err, tt.err)
			}
			if got := f.verified().Rows; got != rows {
				t.Errorf("the journal has %d rows, want %d", got, rows)
			}
			_, err = f.Reserve(f.ctx(), f.epoch, burst(uid, "1"))
			f.must(err) // the line is whole again
		})
	}
}

// When the server stays away the caller is told that nobody knows, and what to do;
// the same key gets the answer later.
func TestACommitWithoutAnAnswerForLong(t *testing.T) {
	name := fresh(t)
	line, f := overLine(t, name)
	f.Patient(300 * time.Millisecond)
	line.Arm(postgres.AfterCommit, true)
	_, err := f.Reserve(f.ctx(), f.epoch, burst("a", "1"))
	want(t, err, ledger.ErrOutcomeUnknown)
	told(t, err, "when the server answers again, ask again with the same key")
	_, err = f.Reserve(f.ctx(), f.epoch, burst("b", "1"))
	told(t, err, "the database can't be reached; nothing was booked: check that the server runs and the URL names it")
	_, err = f.Verify(f.ctx())
	told(t, err, "the database can't be reached")
	direct := onServer(t, name)
	before := direct.verified().Rows
	r, err := direct.Reserve(f.ctx(), direct.epoch, burst("a", "1"))
	if f.must(err); r.Seq >= before || direct.verified().Rows != before {
		t.Errorf("asked again it is row %d of %d", r.Seq, before)
	}
}

// overLine is a fixture that reaches its ledger over a line that can be cut.
func overLine(t *testing.T, name string) (*postgres.Line, *fixture) {
	t.Helper()
	u, err := url.Parse(name)
	if err != nil {
		t.Fatal(err)
	}
	line, err := postgres.NewLine(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(line.Close)
	u.Host = line.Address()
	return line, onServer(t, u.String())
}

// pair is a primary and a standby behind one URL, and a fixture on them.
func pair(t *testing.T) (primary, standby *postgres.Server, f *fixture) {
	t.Helper()
	primary = ownServer(t)
	name := schemaOn(t, primary)
	s, err := primary.Standby(t.Context())
	standby = stopped(t, s, err)
	u, err := url.Parse(name)
	if err != nil {
		t.Fatal(err)
	}
	both := strings.Replace(name, u.Host, primary.Address()+","+standby.Address(), 1)
	return primary, standby, onServer(t, both+"&target_session_attrs=read-write")
}

// With synchronous replication a fail-over loses nothing, and the same process
// goes on at the new primary.
func TestAFailOver(t *testing.T) {
	primary, standby, f := pair(t)
	run(t, primary.URL("postgres", postgres.Superuser), "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
	eventually(t, "the standby is waited for", func() (in bool) {
		f.must(behind(t, primary.URL("postgres", postgres.Superuser)).QueryRow("SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')").Scan(&in))
		return in
	})
	for n := range 5 {
		_, err := f.Reserve(f.ctx(), f.epoch, burst(fmt.Sprint(n), "1"))
		f.must(err)
	}
	before := f.verified()
	f.must(primary.Kill())
	_, err := f.Reserve(f.ctx(), f.epoch, burst("between", "1"))
	told(t, err, "nothing was booked")
	f.must(standby.Promote(f.ctx()))
	_, err = f.Reserve(f.ctx(), f.epoch, burst("after", "1"))
	f.must(err)
	if r := f.verified(); r.Rows != before.Rows+1 || r.Open != 6 {
		t.Errorf("there are %d rows and %d open bursts, want %d and 6", r.Rows, r.Open, before.Rows+1)
	}
}

// A standby that was behind lacks what was answered with yes. Nothing is booked on
// top of the loss.
func TestAFailOverThatHasLostRows(t *testing.T) {
	primary, standby, f := pair(t)
	db := behind(t, standby.URL("postgres", postgres.Superuser))
	for _, s := range []string{"ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"} {
		_, err := db.Exec(s)
		f.must(err)
	}
	eventually(t, "the standby follows no more", func() (out bool) {
		f.must(db.QueryRow("SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)").Scan(&out))
		return out
	})
	_, err := f.Reserve(f.ctx(), f.epoch, burst("lost", "1"))
	f.must(err)
	f.must(primary.Kill())
	f.must(standby.Promote(f.ctx()))
	for range 2 {
		_, err = f.Reserve(f.ctx(), f.epoch, burst("a", "1"))
		told(t, err, "it lacks rows that this process knows to be booked: a backup or a standby that was behind has taken its place; nothing was booked: stop spending")
	}
}

// What Open refuses, in one sentence with thing, reason and remedy.
func TestOpenRefusesServers(t *testing.T) {
	s := ownServer(t)
	standbyServer, err := s.Standby(t.Context())
	standby := stopped(t, standbyServer, err)
	plain := s.URL("postgres", postgres.Superuser)
	schema := schemaOn(t, s)
	f := onServer(t, schema)
	f.must(f.Close())
	foreign, newer := schemaOn(t, s), schemaOn(t, s)
	run(t, foreign, "CREATE TABLE accounts (id int)")
	run(t, newer, "CREATE TABLE ledger_layout (version int)", "INSERT INTO ledger_layout VALUES (9)")
	in := schemaOf(t, schema)
	run(t, plain, "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0", "CREATE ROLE reader LOGIN PASSWORD '"+postgres.Password+"'",
		"GRANT USAGE ON SCHEMA "+in+" TO reader", "GRANT SELECT ON ALL TABLES IN SCHEMA "+in+" TO reader")
	for name, tt := range map[string]struct {
		url      string
		readOnly bool
		want     string
	}{
		"not synchronous":      {schema + "&synchronous_commit=off", false, "synchronous_commit is off, so a crash of the server could lose money that was promised; switch it on"},
		"a standby":            {standby.URL("postgres", postgres.Superuser), false, "the server is a standby, which can't be written; name all servers in the URL and add target_session_attrs=read-write"},
		"another encoding":     {s.URL("latin", postgres.Superuser), false, "the database's encoding is LATIN1; create it with UTF8"},
		"another program's":    {foreign, false, "holds the tables of another program; give the ledger a database or a schema of its own"},
		"a newer layout":       {newer, false, "its layout has version 9 and this program knows version 1"},
		"no schema":            {plain + "?search_path=nowhere", false, "the schema in the URL's search_path does not exist; create it first"},
		"an empty schema":      {schemaOn(t, s), true, "there is no ledger in this schema; check the URL, and its search_path"},
		"no right to write":    {s.URL("postgres", "reader") + "?search_path=" + in, false, "this role may not do that; nothing was booked: make it the owner of the ledger's schema, or open the ledger for reading only"},
		"a wrong password":     {strings.Replace(plain, postgres.Password, postgres.Password+"x", 1), false, "the server lets this role not in; nothing was booked: check role and password"},
		"no such database":     {s.URL("nowhere", postgres.Superuser), false, "there is no such database; nothing was booked: create it, or correct the URL"},
		"no server":            {"postgres://owner:" + postgres.Password + "@127.0.0.1:1/db", false, "the database can't be reached; nothing was booked: check that the server runs and the URL names it"},
		"no URL":               {"postgres://owner:" + postgres.Password + "@[::1/db", false, "this is no PostgreSQL URL"},
		"an odd port":          {"postgres://owner:" + postgres.Password + "@host:port/db?password=" + postgres.Password, false, "this is no PostgreSQL URL"},
		"a password elsewhere": {"postgres://127.0.0.1:1/db?user=owner&password=" + postgres.Password, true, "the database can't be reached"},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := ledger.Open(t.Context(), tt.url, ledger.Options{ReadOnly: tt.readOnly})
			if err == nil {
				_ = l.Close()
			}
			told(t, err, tt.want)
		})
	}
	t.Run("reading is enough for reading", func(t *testing.T) {
		l, err := ledger.Open(t.Context(), s.URL("postgres", "reader")+"?search_path="+in, ledger.Options{ReadOnly: true})
		f.must(err)
		defer l.Close()
		if r, err := l.Verify(t.Context()); err != nil || !r.OK || strings.Contains(r.String(), postgres.Password) {
			t.Errorf("%s, %v", r, err)
		}
	})
	t.Run("a server that does not sync", func(t *testing.T) {
		run(t, plain, "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")
		eventually(t, "the server has read its settings", func() bool {
			l, err := ledger.Open(t.Context(), schema, ledger.Options{})
			if err == nil {
				return l.Close() != nil
			}
			told(t, err, "the server runs with fsync=off and full_page_writes=on, so a power cut could lose money that was promised; switch both on")
			return true
		})
	})
}

// Who holds the lock for too long is named as the reason; nothing waits for ever.
func TestAnotherProcessHoldsTheLock(t *testing.T) {
	f := newFixture(t)
	tx, err := behind(t, f.path).Begin()
	f.must(err)
	_, err = tx.Exec("SELECT version FROM ledger_layout FOR UPDATE")
	f.must(err)
	_, err = f.Reserve(f.ctx(), f.epoch, burst("a", "1"))
	told(t, err, "another process has held the write lock for 10s; nothing was booked: find the session in pg_stat_activity and try again")
	f.must(tx.Rollback())
	_, err = f.Reserve(f.ctx(), f.epoch, burst("a", "1"))
	f.must(err)
}

// A journal goes from one store to the other and back, with the same bytes.
func TestFromStoreToStore(t *testing.T) {
	f := eventful(t)
	export, head := f.exported(), f.verified().Head
	for i, name := range []string{filepath.Join(t.TempDir(), "ledger.db"), fresh(t)} {
		l, err := ledger.Open(t.Context(), name, ledger.Options{})
		f.must(err)
		defer l.Close()
		report, err := l.Import(t.Context(), strings.NewReader(string(export)))
		f.must(err)
		copied := &fixture{Ledger: l, t: t}
		if again := string(copied.exported()); report.Head != head || again != string(export) {
			t.Errorf("store %d has head %s and exports\n%s\nwant %s and\n%s", i, report.Head, again, head, export)
		}
		export = copied.exported()
	}
}

package ledger

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

//go:embed postgres.sql
var postgresSchema string

const (
	minPostgres    = 150000 // server_version_num of the oldest release that is tested
	postgresWait   = 10 * time.Second
	postgresIdle   = 30 * time.Second // a transaction of a process that has stopped holds the lock no longer
	postgresSettle = 20 * time.Second // how long the outcome of a commit is looked for
)

// postgres is a ledger in a PostgreSQL schema. The one row of ledger_layout is
// the write lock: whoever has it reads up to the newest row and writes behind
// it, so no transaction has to be repeated and none can wait in a circle.
func postgres() *database {
	return &database{
		lock: "SELECT version FROM ledger_layout FOR UPDATE",
		known: `SELECT j.burst, j.kind, j.key, j.seq, j.intent FROM json_array_elements($1::json) AS asked (value) JOIN journal AS j
ON j.burst = asked.value ->> 0 AND j.kind = asked.value ->> 1 AND j.key = asked.value ->> 2 AND j.burst <> ''`,
		seen: `SELECT s.stream, s.n, s.digest FROM json_array_elements($1::json) AS asked (value) JOIN usage_seen AS s
ON s.stream = decode(asked.value ->> 0, 'hex') AND s.n = (asked.value ->> 1)::bigint`,
		begin:    sql.TxOptions{Isolation: sql.LevelReadCommitted}, // what is read behind the lock must be new
		view:     sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true},
		patience: postgresIdle,
		guards:   postgresGuards,
		lost:     postgresLost,
		sound:    "the triggers and the index that protect the journal are in place and switched on",
		unsound:  []string{"that the database's own files are sound: pg_amcheck and data checksums show that"},
	}
}

// isPostgres reports whether a name of a ledger is a PostgreSQL URL.
func isPostgres(name string) bool {
	return strings.HasPrefix(name, "postgres://") || strings.HasPrefix(name, "postgresql://")
}

// Name is how a ledger is told to people: a path as it is, a PostgreSQL URL by
// user, servers, database and schema, and by nothing that may be a secret.
func Name(ledger string) string {
	if !isPostgres(ledger) {
		return ledger
	}
	config, err := pgx.ParseConfig(ledger)
	if err != nil {
		return "postgres://..."
	}
	servers := []string{server(config.Host, config.Port)}
	for _, f := range config.Fallbacks {
		servers = append(servers, server(f.Host, f.Port))
	}
	slices.Sort(servers)
	u := url.URL{Scheme: "postgres", Host: strings.Join(slices.Compact(servers), ","), Path: "/" + config.Database}
	if config.User != "" {
		u.User = url.User(config.User)
	}
	if schema := config.RuntimeParams["search_path"]; schema != "" {
		u.RawQuery = url.Values{"search_path": {schema}}.Encode()
	}
	return u.String()
}

func server(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

func (l *Ledger) openPostgres(ctx context.Context, name string, o Options) error {
	l.database = postgres()
	config, err := pgx.ParseConfig(name)
	if err != nil { // its text may show a part of the password
		return errors.New("this is no PostgreSQL URL; write it as postgres://USER@HOST/DATABASE and give the password in PGPASSFILE or PGPASSWORD")
	}
	check := checkWriter
	if o.ReadOnly {
		check = checkServer
	}
	l.read = postgresPool(config, readers, check, nil)
	if o.ReadOnly {
		known, err := identifyPostgres(ctx, l.read)
		if err == nil && !known {
			err = errors.New("there is no ledger in this schema; check the URL, and its search_path")
		}
		return err
	}
	l.write = postgresPool(config, 1, check, map[string]string{
		"idle_in_transaction_session_timeout": strconv.FormatInt(postgresIdle.Milliseconds(), 10),
		// The writer looks up single rows. Its plans must not depend on how old
		// the statistics of a table are that was empty a minute ago. What such
		// plans are thought to cost would have each one compiled, for 60 ms.
		"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off", "jit": "off",
	})
	if err := createPostgres(ctx, l.write); err != nil {
		return err
	}
	return l.prepare(ctx)
}

// postgresPool opens up to n connections, each checked before its first use,
// also the one that comes after a fail-over.
func postgresPool(config *pgx.ConnConfig, n int, check func(context.Context, *pgx.Conn) error, settings map[string]string) *sql.DB {
	c := config.Copy()
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "spillway ledger"
	}
	c.RuntimeParams["lock_timeout"] = strconv.FormatInt(postgresWait.Milliseconds(), 10)
	for k, v := range settings {
		c.RuntimeParams[k] = v
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = postgresWait
	}
	db := stdlib.OpenDB(*c, stdlib.OptionAfterConnect(check))
	db.SetMaxOpenConns(n)
	db.SetMaxIdleConns(n)
	return db
}

func checkServer(ctx context.Context, c *pgx.Conn) error {
	var number, encoding string
	err := c.QueryRow(ctx, "SELECT current_setting('server_version_num'), current_setting('server_encoding')").Scan(&number, &encoding)
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(number); err != nil || n < minPostgres {
		return unfit("the server is PostgreSQL %s; use 15 or newer", number)
	}
	if encoding != "UTF8" {
		return unfit("the database's encoding is %s; create it with UTF8", encoding)
	}
	return nil
}

// checkWriter refuses a server that would say yes before the yes is on its disk.
func checkWriter(ctx context.Context, c *pgx.Conn) error {
	if err := checkServer(ctx, c); err != nil {
		return err
	}
	var standby bool
	var synchronous, fsync, pages string
	err := c.QueryRow(ctx, `SELECT pg_is_in_recovery(), current_setting('synchronous_commit'),
current_setting('fsync'), current_setting('full_page_writes')`).Scan(&standby, &synchronous, &fsync, &pages)
	switch {
	case err != nil:
		return err
	case standby:
		return unfit("the server is a standby, which can't be written; name all servers in the URL and add target_session_attrs=read-write")
	case synchronous == "off":
		return unfit("synchronous_commit is off, so a crash of the server could lose money that was promised; switch it on for this role, or take it out of the URL")
	case fsync == "off" || pages == "off":
		return unfit("the server runs with fsync=%s and full_page_writes=%s, so a power cut could lose money that was promised; switch both on", fsync, pages)
	}
	return nil
}

// unfitError is why a server can't hold a ledger.
type unfitError struct{ why string }

func unfit(format string, args ...any) error { return &unfitError{fmt.Sprintf(format, args...)} }

func (e *unfitError) Error() string { return e.why }

// identifyPostgres reports whether the schema holds a ledger (true) or nothing
// (false); all else is an error.
func identifyPostgres(ctx context.Context, q querier) (bool, error) {
	var schema sql.NullString
	var marked bool
	var tables int
	err := q.QueryRowContext(ctx, `SELECT current_schema(), to_regclass('ledger_layout') IS NOT NULL,
(SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'p', 'v', 'm', 'S', 'f') AND relnamespace = to_regnamespace(quote_ident(current_schema())))`).Scan(&schema, &marked, &tables)
	switch {
	case err != nil:
		return false, err
	case !schema.Valid:
		return false, errors.New("the schema in the URL's search_path does not exist; create it first")
	case !marked && tables > 0:
		return false, fmt.Errorf("schema %q holds the tables of another program; give the ledger a database or a schema of its own", schema.String)
	case !marked:
		return false, nil
	}
	var version int64
	if err := q.QueryRowContext(ctx, "SELECT version FROM ledger_layout").Scan(&version); err != nil {
		return false, err
	}
	return true, checkLayout(version)
}

// createPostgres turns an empty schema into a ledger and leaves a ledger as it is.
func createPostgres(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit this does nothing
	// Two that create at once: the second waits here, and finds a ledger.
	if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock($1)", applicationID); err != nil {
		return err
	}
	known, err := identifyPostgres(ctx, tx)
	if err != nil {
		return err
	}
	if !known {
		if _, err := tx.ExecContext(ctx, postgresSchema); err != nil {
			return err
		}
	}
	// Whether it can be written is found now and not at the first reservation.
	if _, err := tx.ExecContext(ctx, postgres().lock); err != nil {
		return err
	}
	return tx.Commit()
}

// postgresGuards checks that the ledger's tables have their triggers and indexes,
// switched on and as they were made, and no others.
func postgresGuards(ctx context.Context, q querier, v *verifier) error {
	rows, err := q.QueryContext(ctx, `SELECT t.tgname, p.prosrc, t.tgenabled IN ('O', 'A') AND t.tgqual IS NULL AND t.tgattr = ''
FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
WHERE t.tgrelid IN ('journal'::regclass, 'usage_seen'::regclass, 'usage_total'::regclass) AND NOT t.tgisinternal
UNION ALL SELECT r.rulename, pg_get_ruledef(r.oid), true
FROM pg_rewrite AS r WHERE r.ev_class IN ('journal'::regclass, 'usage_seen'::regclass, 'usage_total'::regclass)
UNION ALL SELECT c.relname, pg_get_indexdef(i.indexrelid), i.indisunique AND i.indisvalid
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid WHERE i.indrelid = 'journal'::regclass`)
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // Err says it
	present := make(map[string]bool)
	for rows.Next() {
		var name, body string
		var on bool
		if err := rows.Scan(&name, &body, &on); err != nil {
			return err
		}
		known := slices.Contains(guardNames(), name)
		if !known {
			v.found(0, "%s is not part of a ledger: %.80s", name, body)
		}
		present[name] = known && on && (strings.Contains(postgresSchema, body) || strings.HasPrefix(body, "CREATE UNIQUE INDEX"))
	}
	for _, name := range guardNames() {
		if !present[name] {
			v.found(0, "the guard %s is missing, switched off or changed: rows may have been changed past it", name)
		}
	}
	return rows.Err()
}

// guardNames are the triggers and indexes that protect the journal.
func guardNames() []string {
	return []string{"journal_pkey", "journal_once", "journal_no_update", "journal_no_delete", "journal_no_truncate", "journal_next"}
}

// postgresLost: only an answer of the server that it refused is certain.
func postgresLost(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return !ok || e.Severity == "FATAL" || e.Severity == "PANIC"
}

// oneLine is an error whose text is one line: pgx tells of each server that it has
// tried in a line of its own.
type oneLine struct{ error }

func (e oneLine) Error() string { return strings.Join(strings.Fields(e.error.Error()), " ") }

func (e oneLine) Unwrap() error { return e.error }

// explainPostgres says what is wrong with the database and what to do; nothing
// when the error does not come from there.
func explainPostgres(err error) (reason, remedy string) {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return explainCode(e)
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return "the database can't be reached", "check that the server runs and the URL names it, then try again"
	}
	if pgconn.SafeToRetry(err) || pgconn.Timeout(err) || errors.Is(err, context.DeadlineExceeded) {
		return "the database did not answer", "check the server and the network, then try again"
	}
	return "", ""
}

func explainCode(e *pgconn.PgError) (reason, remedy string) {
	switch {
	case e.Code == "55P03":
		return fmt.Sprintf("another process has held the write lock for %v", postgresWait), "find the session in pg_stat_activity and try again"
	case e.Code == "42501":
		return "this role may not do that", "make it the owner of the ledger's schema, or open the ledger for reading only"
	case e.Code == "25006":
		return "the server can't be written: it is a standby, or was set read-only", "name all servers in the URL and add target_session_attrs=read-write"
	case e.Code == "53100":
		return "the server's disk is full", "free some space and try again"
	case e.Code == "23505" || e.Code == "P0001":
		return "the journal was changed by something that is not a ledger", "verify it, then try again"
	case e.Code == "3D000":
		return "there is no such database", "create it, or correct the URL"
	case strings.HasPrefix(e.Code, "28"):
		return "the server lets this role not in", "check role and password, and the server's pg_hba.conf"
	case strings.HasPrefix(e.Code, "57P") || strings.HasPrefix(e.Code, "08") || strings.HasPrefix(e.Code, "53"):
		return "the server can't answer now", "look at its log and try again"
	}
	return "the server refused", "look at its log, then verify the ledger"
}

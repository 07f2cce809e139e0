-- One row is one committed change. The journal is the only truth: the tables
-- below it can be built anew from it, and `Verify` does so to compare.
CREATE TABLE journal (
  seq      INTEGER PRIMARY KEY,  -- 1, 2, 3, ... without a gap
  recorded INTEGER NOT NULL,     -- Unix nanoseconds, strictly rising
  epoch    INTEGER NOT NULL,     -- term of the leader that wrote it
  kind     TEXT    NOT NULL,
  burst    TEXT    NOT NULL,     -- '' when it is about no burst
  key      TEXT    NOT NULL,     -- idempotency key within burst and kind
  intent   TEXT    NOT NULL,     -- what was asked for, JSON
  entries  TEXT    NOT NULL,     -- what it moved: lines of debit, credit and amount between tabs
  prev     BLOB    NOT NULL,     -- hash of the row before
  hash     BLOB    NOT NULL      -- SHA-256 over all of the above
) STRICT;

CREATE UNIQUE INDEX journal_once ON journal (burst, kind, key) WHERE burst <> '';

CREATE TRIGGER journal_no_update BEFORE UPDATE ON journal
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;

CREATE TRIGGER journal_no_delete BEFORE DELETE ON journal
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;

CREATE TRIGGER journal_next BEFORE INSERT ON journal
WHEN NEW.seq <> (SELECT coalesce(max(seq), 0) + 1 FROM journal)
BEGIN SELECT RAISE(ABORT, 'the journal has no gaps'); END;

-- For people with a SQL shell: one row for each two-sided entry. (A quoted text
-- with its line ends or tabs replaced is a JSON array.)
CREATE VIEW entry AS
WITH line AS (
  SELECT j.seq, j.recorded, j.kind, j.burst, '[' || replace(json_quote(e.value), '\t', '","') || ']' AS side
  FROM journal AS j, json_each('[' || replace(json_quote(j.entries), '\n', '","') || ']') AS e
  WHERE e.value <> ''
)
SELECT seq, datetime(recorded / 1000000000, 'unixepoch') AS recorded, kind, burst,
       side ->> 0 AS debit, side ->> 1 AS credit, side ->> 2 AS amount
FROM line;

-- Which usage records are in the journal. The stream is the first half of
-- SHA-256 over (node, boot, journal), the digest a part of the record's.
CREATE TABLE usage_seen (
  stream BLOB    NOT NULL,
  n      INTEGER NOT NULL,
  digest INTEGER NOT NULL,
  PRIMARY KEY (stream, n)
) STRICT, WITHOUT ROWID;

-- Usage summed up by UTC hour.
CREATE TABLE usage_total (
  hour          INTEGER NOT NULL,  -- Unix seconds of its start
  tenant        TEXT    NOT NULL,
  namespace     TEXT    NOT NULL,
  owner         TEXT    NOT NULL,
  pod           TEXT    NOT NULL,
  burst         TEXT    NOT NULL,  -- '' on-prem
  node          TEXT    NOT NULL,
  model         TEXT    NOT NULL,
  phase         TEXT    NOT NULL,
  source        TEXT    NOT NULL,
  share_seconds INTEGER NOT NULL,  -- seconds times 1/840 GPU
  PRIMARY KEY (tenant, burst, hour, namespace, owner, pod, node, model, phase, source)
) STRICT, WITHOUT ROWID;

-- The same ledger as schema.sql says, in PostgreSQL's words. Texts compare byte by
-- byte, as they do in SQLite.
CREATE TABLE ledger_layout (
  version integer NOT NULL  -- of this layout; its one row is the write lock
);
INSERT INTO ledger_layout VALUES (1);

CREATE TABLE journal (
  seq      bigint PRIMARY KEY,  -- 1, 2, 3, ... without a gap
  recorded bigint NOT NULL,     -- Unix nanoseconds, strictly rising
  epoch    bigint NOT NULL,     -- term of the leader that wrote it
  kind     text   COLLATE "C" NOT NULL,
  burst    text   COLLATE "C" NOT NULL,  -- '' when it is about no burst
  key      text   COLLATE "C" NOT NULL,  -- idempotency key within burst and kind
  intent   text   COLLATE "C" NOT NULL,  -- what was asked for, JSON
  entries  text   COLLATE "C" NOT NULL,  -- what it moved: lines of debit, credit and amount between tabs
  prev     bytea  NOT NULL,     -- hash of the row before
  hash     bytea  NOT NULL      -- SHA-256 over all of the above
);

CREATE UNIQUE INDEX journal_once ON journal (burst, kind, key) WHERE burst <> '';

CREATE FUNCTION journal_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'the journal is append-only';
END $$;

CREATE FUNCTION journal_no_gap() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.seq <> (SELECT coalesce(max(seq), 0) + 1 FROM journal) THEN
    RAISE EXCEPTION 'the journal has no gaps';
  END IF;
  RETURN NEW;
END $$;

CREATE TRIGGER journal_no_update BEFORE UPDATE ON journal FOR EACH ROW EXECUTE FUNCTION journal_append_only();

CREATE TRIGGER journal_no_delete BEFORE DELETE ON journal FOR EACH ROW EXECUTE FUNCTION journal_append_only();

CREATE TRIGGER journal_no_truncate BEFORE TRUNCATE ON journal FOR EACH STATEMENT EXECUTE FUNCTION journal_append_only();

CREATE TRIGGER journal_next BEFORE INSERT ON journal FOR EACH ROW EXECUTE FUNCTION journal_no_gap();

-- For people with a SQL shell: one row for each two-sided entry.
CREATE VIEW entry AS
SELECT seq, to_timestamp(recorded / 1000000000) AS recorded, kind, burst,
       split_part(line, E'\t', 1) AS debit, split_part(line, E'\t', 2) AS credit, split_part(line, E'\t', 3) AS amount
FROM journal, unnest(string_to_array(entries, E'\n')) AS line
WHERE line <> '';

-- Which usage records are in the journal. The stream is the first half of
-- SHA-256 over (node, boot, journal), the digest a part of the record's.
CREATE TABLE usage_seen (
  stream bytea  NOT NULL,
  n      bigint NOT NULL,
  digest bigint NOT NULL,
  PRIMARY KEY (stream, n)
);

-- Usage summed up by UTC hour.
CREATE TABLE usage_total (
  hour          bigint NOT NULL,  -- Unix seconds of its start
  tenant        text   COLLATE "C" NOT NULL,
  namespace     text   COLLATE "C" NOT NULL,
  owner         text   COLLATE "C" NOT NULL,
  pod           text   COLLATE "C" NOT NULL,
  burst         text   COLLATE "C" NOT NULL,  -- '' on-prem
  node          text   COLLATE "C" NOT NULL,
  model         text   COLLATE "C" NOT NULL,
  phase         text   COLLATE "C" NOT NULL,
  source        text   COLLATE "C" NOT NULL,
  share_seconds bigint NOT NULL,  -- seconds times 1/840 GPU
  PRIMARY KEY (tenant, burst, hour, namespace, owner, pod, node, model, phase, source)
);

-- The ledger of one run, in a schema of its own. Times are seconds since 1970 on the server's clock; ids
-- are text in byte order, whatever the database's collation; JSON is text.
CREATE TABLE run (
  single INTEGER PRIMARY KEY CHECK (single = 1),
  uid TEXT NOT NULL,
  name TEXT COLLATE "C" NOT NULL,
  spec_digest TEXT NOT NULL,
  created_at DOUBLE PRECISION NOT NULL,
  lineage INTEGER NOT NULL DEFAULT 0,        -- the live lineage
  next_admitted BIGINT NOT NULL DEFAULT 0,   -- first training ordinal still outside
  exhausted INTEGER NOT NULL DEFAULT 0,
  tracked_step INTEGER NOT NULL DEFAULT -1,  -- last step that every tracker has; 0 is the initial model
  outcome TEXT,                              -- JSON {kind, reason, message}
  settings TEXT NOT NULL DEFAULT '{}'
);

CREATE TABLE lineages (
  lineage INTEGER PRIMARY KEY,
  parent INTEGER REFERENCES lineages,
  base_step INTEGER NOT NULL,                -- last step shared with the parent
  reason TEXT NOT NULL,
  created_at DOUBLE PRECISION NOT NULL
);

CREATE TABLE workers (
  worker TEXT COLLATE "C" PRIMARY KEY,
  role TEXT NOT NULL,
  incarnation BIGINT NOT NULL,               -- fences older processes of the same name
  pid BIGINT NOT NULL,
  host TEXT NOT NULL,
  registered_at DOUBLE PRECISION NOT NULL,
  outcome TEXT
);

CREATE TABLE tasks (
  task_id TEXT COLLATE "C" PRIMARY KEY,
  kind TEXT COLLATE "C" NOT NULL CHECK (kind IN ('train', 'eval', 'row')),
  ordinal BIGINT NOT NULL,
  num_samples INTEGER NOT NULL,
  evaluation TEXT NOT NULL,
  split TEXT COLLATE "C" NOT NULL,
  lineage INTEGER NOT NULL,
  step INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('open', 'leased', 'done', 'excluded', 'expired', 'surplus')),
  epoch BIGINT NOT NULL DEFAULT 0,           -- fencing: grows with every lease
  failures INTEGER NOT NULL DEFAULT 0,       -- infrastructure failures reported
  losses INTEGER NOT NULL DEFAULT 0,         -- attempts whose worker vanished
  data_failures INTEGER NOT NULL DEFAULT 0,
  worker TEXT COLLATE "C",
  incarnation BIGINT,
  version_lineage INTEGER,
  version_step INTEGER,
  leased_at DOUBLE PRECISION,
  expires_at DOUBLE PRECISION,
  admitted_at DOUBLE PRECISION NOT NULL
);
CREATE INDEX tasks_open ON tasks (kind, step, ordinal) WHERE state = 'open';
CREATE INDEX tasks_leased ON tasks (worker) WHERE state = 'leased';
CREATE INDEX tasks_expiring ON tasks (expires_at) WHERE state = 'leased';
CREATE INDEX tasks_by_order ON tasks (kind, ordinal) WHERE kind <> 'eval';
CREATE INDEX tasks_by_evaluation ON tasks (evaluation, split, lineage, step) WHERE kind = 'eval';

CREATE TABLE attempts (
  task_id TEXT COLLATE "C" NOT NULL,
  epoch BIGINT NOT NULL,
  worker TEXT COLLATE "C" NOT NULL,
  incarnation BIGINT NOT NULL,
  version_lineage INTEGER NOT NULL,
  version_step INTEGER NOT NULL,
  started_at DOUBLE PRECISION NOT NULL,
  ended_at DOUBLE PRECISION,
  ending TEXT,                               -- accepted, infrastructure, data, returned, lost, expired
  message TEXT,
  PRIMARY KEY (task_id, epoch)
);

CREATE TABLE trajectories (
  task_id TEXT COLLATE "C" NOT NULL,
  sample INTEGER NOT NULL,
  trajectory_id TEXT COLLATE "C" NOT NULL,
  epoch BIGINT NOT NULL,
  reward DOUBLE PRECISION NOT NULL,
  num_tokens INTEGER NOT NULL,
  ending TEXT NOT NULL,
  PRIMARY KEY (task_id, sample)
);
-- No index by trajectory_id: ids are random, an index would dirty a page per sample, and only people ask.

CREATE TABLE bodies (
  task_id TEXT COLLATE "C" PRIMARY KEY,
  body BYTEA NOT NULL                        -- rollout.codec, all samples of the task
);

CREATE TABLE versions (
  lineage INTEGER NOT NULL,
  step INTEGER NOT NULL,
  digest TEXT NOT NULL,
  object TEXT NOT NULL,
  chain TEXT NOT NULL,
  published_at DOUBLE PRECISION NOT NULL,
  retired INTEGER NOT NULL DEFAULT 0,        -- its object is deleted
  PRIMARY KEY (lineage, step)
);
CREATE INDEX versions_kept ON versions (lineage, step) WHERE retired = 0;

CREATE TABLE steps (
  lineage INTEGER NOT NULL,
  step INTEGER NOT NULL,
  plan BYTEA NOT NULL,
  next_ordinal BIGINT NOT NULL,
  exhausted INTEGER NOT NULL,
  metrics TEXT NOT NULL,
  phase_seconds TEXT NOT NULL,
  committed_at DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (lineage, step)
);

CREATE TABLE dispositions (
  lineage INTEGER NOT NULL,
  task_id TEXT COLLATE "C" NOT NULL,
  sample INTEGER NOT NULL,
  step INTEGER NOT NULL,
  kind TEXT COLLATE "C" NOT NULL CHECK (kind IN ('consumed', 'filtered', 'expired', 'excluded', 'surplus')),
  reason TEXT NOT NULL,
  place INTEGER,                             -- order of consumption inside the step
  PRIMARY KEY (lineage, task_id, sample)
);
CREATE INDEX dispositions_by_step ON dispositions (lineage, step);

CREATE TABLE evaluations (
  name TEXT COLLATE "C" NOT NULL,
  split TEXT COLLATE "C" NOT NULL,
  lineage INTEGER NOT NULL,
  step INTEGER NOT NULL,
  num_tasks INTEGER NOT NULL,
  scheduled_at DOUBLE PRECISION NOT NULL,
  finished_at DOUBLE PRECISION,
  summary TEXT,                              -- JSON; NULL while it runs
  PRIMARY KEY (name, split, lineage, step)
);

CREATE TABLE anchors (
  lineage INTEGER NOT NULL,
  step INTEGER NOT NULL,
  name TEXT COLLATE "C" NOT NULL,
  manifest TEXT NOT NULL,
  saved_at DOUBLE PRECISION NOT NULL,
  deleted INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (lineage, step)
);

CREATE TABLE events (
  seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at DOUBLE PRECISION NOT NULL,
  kind TEXT COLLATE "C" NOT NULL,
  message TEXT NOT NULL,
  data TEXT NOT NULL
);

-- Who may write.
CREATE TABLE ledger (
  single INTEGER PRIMARY KEY CHECK (single = 1),
  term BIGINT NOT NULL,                      -- fences coordinators: grows with every one that opens
  position BIGINT NOT NULL                   -- writes acknowledged before this term
);

-- What each connection wrote last: tells after a lost answer whether the commit came through. A row for
-- each, so that their commits need not wait for one another.
CREATE TABLE receipts (
  lane TEXT PRIMARY KEY,
  token TEXT NOT NULL,
  writes BIGINT NOT NULL DEFAULT 0           -- acknowledged in this term
) WITH (fillfactor = 10);

-- Compressed already; stored as they are.
ALTER TABLE bodies ALTER COLUMN body SET STORAGE EXTERNAL;

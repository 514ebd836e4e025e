-- The ledger of one run. Times are seconds since 1970 on this machine's clock; ids are text, JSON is text.
-- Checks are written with OR: for IN and a list of three, SQLite builds and drops a table for every row.
CREATE TABLE run (
  only INTEGER PRIMARY KEY CHECK (only = 1),
  uid TEXT NOT NULL,
  name TEXT NOT NULL,
  spec_digest TEXT NOT NULL,
  created_at REAL NOT NULL,
  position INTEGER NOT NULL DEFAULT 0,       -- grows by one with every acknowledged write
  lineage INTEGER NOT NULL DEFAULT 0,        -- the live lineage
  next_admitted INTEGER NOT NULL DEFAULT 0,  -- first training ordinal still outside
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
  created_at REAL NOT NULL
);

CREATE TABLE workers (
  worker TEXT PRIMARY KEY,
  role TEXT NOT NULL,
  incarnation INTEGER NOT NULL,              -- fences older processes of the same name
  pid INTEGER NOT NULL,
  host TEXT NOT NULL,
  registered_at REAL NOT NULL,
  outcome TEXT
) WITHOUT ROWID;

CREATE TABLE tasks (
  task_id TEXT PRIMARY KEY,
  kind TEXT NOT NULL CHECK (kind = 'train' OR kind = 'eval' OR kind = 'row'),
  ordinal INTEGER NOT NULL,
  num_samples INTEGER NOT NULL,
  evaluation TEXT NOT NULL,
  split TEXT NOT NULL,
  lineage INTEGER NOT NULL,
  step INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (
    state = 'open' OR state = 'leased' OR state = 'done'
    OR state = 'excluded' OR state = 'expired' OR state = 'surplus'
  ),
  epoch INTEGER NOT NULL DEFAULT 0,          -- fencing: grows with every lease
  failures INTEGER NOT NULL DEFAULT 0,       -- infrastructure failures reported
  losses INTEGER NOT NULL DEFAULT 0,         -- attempts whose worker vanished
  data_failures INTEGER NOT NULL DEFAULT 0,
  worker TEXT,
  incarnation INTEGER,
  version_lineage INTEGER,
  version_step INTEGER,
  leased_at REAL,
  expires_at REAL,
  admitted_at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX tasks_live ON tasks (kind, step, ordinal) WHERE state IN ('open', 'leased');
CREATE INDEX tasks_by_order ON tasks (kind, ordinal) WHERE kind <> 'eval';
CREATE INDEX tasks_by_evaluation ON tasks (evaluation, split, lineage, step) WHERE kind = 'eval';

CREATE TABLE attempts (
  task_id TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  worker TEXT NOT NULL,
  incarnation INTEGER NOT NULL,
  version_lineage INTEGER NOT NULL,
  version_step INTEGER NOT NULL,
  started_at REAL NOT NULL,
  ended_at REAL,
  ending TEXT,                               -- accepted, infrastructure, data, returned, lost, expired
  message TEXT,
  PRIMARY KEY (task_id, epoch)
) WITHOUT ROWID;

CREATE TABLE trajectories (
  task_id TEXT NOT NULL,
  sample INTEGER NOT NULL,
  trajectory_id TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  reward REAL NOT NULL,
  num_tokens INTEGER NOT NULL,
  ending TEXT NOT NULL,
  PRIMARY KEY (task_id, sample)
) WITHOUT ROWID;
-- No index by trajectory_id: ids are random, an index would dirty a page per sample, and only people ask.

CREATE TABLE bodies (
  task_id TEXT PRIMARY KEY,
  body BLOB NOT NULL                         -- rollout.codec, all samples of the task
);

CREATE TABLE versions (
  lineage INTEGER NOT NULL,
  step INTEGER NOT NULL,
  digest TEXT NOT NULL,
  object TEXT NOT NULL,
  chain TEXT NOT NULL,
  published_at REAL NOT NULL,
  retired INTEGER NOT NULL DEFAULT 0,        -- its object is deleted
  PRIMARY KEY (lineage, step)
) WITHOUT ROWID;
CREATE INDEX versions_kept ON versions (lineage, step) WHERE retired = 0;

CREATE TABLE steps (
  lineage INTEGER NOT NULL,
  step INTEGER NOT NULL,
  plan BLOB NOT NULL,
  next_ordinal INTEGER NOT NULL,
  exhausted INTEGER NOT NULL,
  metrics TEXT NOT NULL,
  phase_seconds TEXT NOT NULL,
  committed_at REAL NOT NULL,
  PRIMARY KEY (lineage, step)
) WITHOUT ROWID;

CREATE TABLE dispositions (
  lineage INTEGER NOT NULL,
  task_id TEXT NOT NULL,
  sample INTEGER NOT NULL,
  step INTEGER NOT NULL,
  kind TEXT NOT NULL CHECK (
    kind = 'consumed' OR kind = 'filtered' OR kind = 'expired'
    OR kind = 'excluded' OR kind = 'surplus'
  ),
  reason TEXT NOT NULL,
  place INTEGER,                             -- order of consumption inside the step
  PRIMARY KEY (lineage, task_id, sample)
) WITHOUT ROWID;
CREATE INDEX dispositions_by_step ON dispositions (lineage, step);

CREATE TABLE evaluations (
  name TEXT NOT NULL,
  split TEXT NOT NULL,
  lineage INTEGER NOT NULL,
  step INTEGER NOT NULL,
  num_tasks INTEGER NOT NULL,
  scheduled_at REAL NOT NULL,
  finished_at REAL,
  summary TEXT,                              -- JSON; NULL while it runs
  PRIMARY KEY (name, split, lineage, step)
) WITHOUT ROWID;

CREATE TABLE anchors (
  lineage INTEGER NOT NULL,
  step INTEGER NOT NULL,
  name TEXT NOT NULL,
  manifest TEXT NOT NULL,
  saved_at REAL NOT NULL,
  deleted INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (lineage, step)
) WITHOUT ROWID;

CREATE TABLE events (
  seq INTEGER PRIMARY KEY,
  at REAL NOT NULL,
  kind TEXT NOT NULL,
  message TEXT NOT NULL,
  data TEXT NOT NULL
);

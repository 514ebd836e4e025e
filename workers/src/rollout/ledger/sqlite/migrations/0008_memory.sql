-- What environments keep between episodes, written with the step that consumed the samples (rollout.ledger.sql.memory).
CREATE TABLE memory (
  lineage INTEGER NOT NULL,
  step INTEGER NOT NULL,
  ordinal INTEGER NOT NULL,                  -- of the training task
  sample INTEGER NOT NULL,
  key TEXT NOT NULL,
  value TEXT NOT NULL,                       -- JSON; null takes the entry away
  vector BLOB NOT NULL,                      -- float64, little-endian; empty: none
  PRIMARY KEY (lineage, step, ordinal, sample, key)
) WITHOUT ROWID;
ALTER TABLE run ADD COLUMN memory_step INTEGER NOT NULL DEFAULT 0; -- rows up to it are only those whose entries were there then

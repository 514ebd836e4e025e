-- What environments keep between episodes, written with the step that consumed the samples (rollout.ledger.sql.memory).
CREATE TABLE memory (
  lineage INTEGER NOT NULL,
  step INTEGER NOT NULL,
  ordinal BIGINT NOT NULL,                   -- of the training task
  sample INTEGER NOT NULL,
  key TEXT COLLATE "C" NOT NULL,             -- in the order of code points, as elsewhere
  value TEXT NOT NULL,                       -- JSON; null takes the entry away
  vector BYTEA NOT NULL,                     -- float64, little-endian; empty: none
  PRIMARY KEY (lineage, step, ordinal, sample, key)
);
ALTER TABLE run ADD COLUMN memory_step INTEGER NOT NULL DEFAULT 0; -- rows up to it are only those whose entries were there then

-- Beginnings of samples that an actor gave up before they had ended; gone with the task's result.
ALTER TABLE tasks ADD COLUMN prefixed INTEGER NOT NULL DEFAULT 0;

CREATE TABLE prefixes (
  task_id TEXT PRIMARY KEY,
  epoch INTEGER NOT NULL,                    -- the attempt that left them
  body BLOB NOT NULL                         -- rollout.codec.encode_prefixes
);

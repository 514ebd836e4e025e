-- Beginnings of samples that an actor gave up before they had ended; gone with the task's result.
ALTER TABLE tasks ADD COLUMN prefixed INTEGER NOT NULL DEFAULT 0;

CREATE TABLE prefixes (
  task_id TEXT COLLATE "C" PRIMARY KEY,
  epoch BIGINT NOT NULL,                     -- the attempt that left them
  body BYTEA NOT NULL                        -- rollout.codec.encode_prefixes
);
ALTER TABLE prefixes ALTER COLUMN body SET STORAGE EXTERNAL;

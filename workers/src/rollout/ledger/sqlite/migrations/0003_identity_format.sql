-- How the digest of the spec was made (rollout.runs.identity); 0: written before ledgers said it.
ALTER TABLE run ADD COLUMN identity_format INTEGER NOT NULL DEFAULT 0;

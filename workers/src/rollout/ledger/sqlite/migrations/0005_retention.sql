-- Which bodies are no longer kept, written with their removal (rollout.ledger.sql.removing). All other rows stay.
ALTER TABLE run ADD COLUMN removed_step INTEGER NOT NULL DEFAULT 0;    -- of steps up to this one
ALTER TABLE run ADD COLUMN removed_ordinal INTEGER NOT NULL DEFAULT 0; -- training ordinals below have none
ALTER TABLE run ADD COLUMN removed_bodies INTEGER NOT NULL DEFAULT 0;
ALTER TABLE run ADD COLUMN removed_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE evaluations ADD COLUMN removed INTEGER NOT NULL DEFAULT 0; -- 1: some bodies are, 2: none is left

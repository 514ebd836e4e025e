-- When which process lived, and on what: what a run costs is counted from it (rollout.ledger.sql.lives). Written about once a minute, never by a step.
CREATE TABLE lives (
  worker TEXT NOT NULL,
  incarnation BIGINT NOT NULL,
  began_ms BIGINT NOT NULL,                  -- milliseconds since 1970, first heard; a life with a gap has several rows
  heard_ms BIGINT NOT NULL,                  -- last heard
  role TEXT NOT NULL,
  place TEXT NOT NULL,                       -- JSON: a machine, or what a pod asks for
  PRIMARY KEY (worker, incarnation, began_ms)
);

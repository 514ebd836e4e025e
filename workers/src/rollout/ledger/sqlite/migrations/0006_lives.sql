-- When which process lived, and on what: what a run costs is counted from it (rollout.ledger.sql.lives). Written about once a minute, never by a step.
CREATE TABLE lives (
  worker TEXT NOT NULL,
  incarnation INTEGER NOT NULL,
  began_ms INTEGER NOT NULL,                 -- milliseconds since 1970, first heard; a life with a gap has several rows
  heard_ms INTEGER NOT NULL,                 -- last heard
  role TEXT NOT NULL,
  place TEXT NOT NULL,                       -- JSON: a machine, or what a pod asks for
  PRIMARY KEY (worker, incarnation, began_ms)
) WITHOUT ROWID;

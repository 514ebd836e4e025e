-- How samples ended, counted as they end: nobody reads them all to count them.
CREATE TABLE tallies (
  lineage INTEGER NOT NULL,
  kind TEXT NOT NULL,
  step INTEGER NOT NULL,
  num INTEGER NOT NULL,                      -- of this step
  total INTEGER NOT NULL,                    -- of this lineage up to this step
  PRIMARY KEY (lineage, kind, step)
) WITHOUT ROWID;
INSERT INTO tallies
  SELECT lineage, kind, step, count(*), sum(count(*)) OVER (PARTITION BY lineage, kind ORDER BY step)
  FROM dispositions GROUP BY lineage, kind, step;

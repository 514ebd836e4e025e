-- How samples ended, counted as they end: nobody reads them all to count them.
CREATE TABLE tallies (
  lineage BIGINT NOT NULL,
  kind TEXT NOT NULL,
  step BIGINT NOT NULL,
  num BIGINT NOT NULL,                      -- of this step
  total BIGINT NOT NULL,                    -- of this lineage up to this step
  PRIMARY KEY (lineage, kind, step)
);
INSERT INTO tallies
  SELECT lineage, kind, step, count(*), sum(count(*)) OVER (PARTITION BY lineage, kind ORDER BY step)
  FROM dispositions GROUP BY lineage, kind, step;

"""What SQLite's planner is told of a ledger's tables: the shape that they have after a million samples.

Without statistics the planner takes the primary key of ``dispositions``, whose first column is equal in
nearly all rows, for as good as the index by step, and reads a whole run to count one step. Measured
statistics could go stale or be lost; these are written when a ledger is opened and are right at any size:
where there is little, every plan is quick.
"""

from __future__ import annotations

import sqlite3

SHAPE = (
    # table, index, "rows, then rows for each value of the first column, of the first two, ..."
    ("dispositions", "dispositions", "1000000 500000 8 1"),
    ("dispositions", "dispositions_by_step", "1000000 500000 500"),
    ("trajectories", "trajectories", "1000000 8 1"),
    ("tasks", "tasks", "125000 1"),
    ("tasks", "tasks_by_order", "125000 62500 1"),
    ("tasks", "tasks_live", "1000 500 250 1"),
    ("tasks", "tasks_by_evaluation", "10000 5000 5000 2000 500"),
    ("attempts", "attempts", "130000 1 1"),
    ("bodies", "sqlite_autoindex_bodies_1", "125000 1"),
    ("prefixes", "sqlite_autoindex_prefixes_1", "100 1"),
    ("steps", "steps", "2000 1000 1"),
    ("versions", "versions", "2000 1000 1"),
    ("versions", "versions_kept", "10 5 1"),
    ("anchors", "anchors", "100 50 1"),
    ("evaluations", "evaluations", "1000 200 200 200 1"),
    ("workers", "workers", "100 1"),
    ("tallies", "tallies", "6000 3000 1000 1"),
)


def write_statistics(connection: sqlite3.Connection) -> None:
    """Write the statistics where they differ, and have this connection use them. Raises sqlite3.Error."""
    connection.execute("ANALYZE run")  # the table of statistics exists from here on
    found = set(connection.execute("SELECT tbl, idx, stat FROM sqlite_stat1 WHERE tbl <> 'run'"))
    if found != set(SHAPE):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DELETE FROM sqlite_stat1")
        connection.executemany("INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES (?, ?, ?)", SHAPE)
        connection.execute("COMMIT")
    connection.execute("ANALYZE sqlite_schema")  # reads them in

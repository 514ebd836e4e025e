"""The ledger's state machine, written once in SQL that SQLite and Postgres both understand."""

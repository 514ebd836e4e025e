"""The Postgres ledger: a schema per run, short transactions on a pool, the server's clock.

The only place in this distribution that imports ``psycopg``.
"""

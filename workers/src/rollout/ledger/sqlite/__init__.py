"""The SQLite ledger: one file, one writer thread, group commit, every acknowledged write on disk.

The only place in this distribution that imports ``sqlite3``.
"""

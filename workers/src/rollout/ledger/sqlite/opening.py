"""Opening a ledger file: what kind of disk, who else has it, whose it is, which schema.

Refuses network file systems (their locks lie), a file that another process has open, one that is not
a ledger or is damaged, one of another run, and one that a newer version has written.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import sqlite3
import time
from pathlib import Path
from typing import IO

import psutil

from rollout.common.atomic_files import fsync_folder
from rollout.errors import LedgerBroken, LedgerError
from rollout.ledger.formats import check_format, check_identity, list_migrations
from rollout.ledger.records import RunIdentity
from rollout.ledger.sqlite.statistics import write_statistics
from rollout.ledger.sqlite.writer import DATABASE_ERRORS, wrap, wrap_system

logger = logging.getLogger(__name__)

NETWORK_FILE_SYSTEMS = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "smb2",
        "9p",
        "afs",
        "afpfs",
        "ceph",
        "glusterfs",
        "lustre",
        "beegfs",
        "gpfs",
        "ocfs2",
        "gfs2",
        "orangefs",
        "fuse.sshfs",
        "fuse.s3fs",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.ceph",
        "fuse.rclone",
        "fuse.goofys",
        "davfs",
    ]
)

CHECKED_BYTES_MAX = 256 << 20
"""Larger files are not scanned for damage at every start: it would take seconds."""

LOG_BYTES = 1100 * (4096 + 24)
"""What the write-ahead log grows to before it is begun again: 1000 pages, and what one transaction goes beyond."""

BUSY_SECONDS = 10.0
"""How long to wait for a reader that checkpoints or holds the file."""


def open_connection(path: Path, identity: RunIdentity) -> tuple[sqlite3.Connection, IO[bytes]]:
    """A checked, migrated connection and the lock that keeps others out while it stays open.

    Raises LedgerError, or LedgerBelongsToAnotherRun when the file names another run or spec.
    """
    refuse_network_file_system(path)
    lock = lock_beside(path)
    try:
        connection = connect(path)
        check_damage(connection, path)
        _migrate(connection, path)
        _claim_identity(connection, path, identity)
        write_statistics(connection)
        fill_log(path)
        fsync_folder(path.parent)
    except DATABASE_ERRORS as error:
        lock.close()
        raise wrap(error, path) from error
    except LedgerError:
        lock.close()
        raise
    except OSError as error:
        lock.close()
        raise wrap_system(error, path) from error
    return connection, lock


def refuse_network_file_system(path: Path) -> None:
    """Raises LedgerError when the file would lie on a network file system."""
    kind = file_system_of(path)
    if kind in NETWORK_FILE_SYSTEMS:
        raise LedgerError(
            f"{path} lies on a network file system ({kind}), where SQLite cannot keep its promises:"
            " put the run's folder on a local disk (ROLLOUT_HOME)"
        )


def file_system_of(path: Path) -> str:
    """The type of the file system that holds ``path`` (``ext4``, ``nfs4``); empty when unknown."""
    target = path.resolve()
    best_mount, kind = "", ""
    for partition in psutil.disk_partitions(all=True):
        mount = Path(partition.mountpoint)
        if target.is_relative_to(mount) and len(partition.mountpoint) >= len(best_mount):
            best_mount, kind = partition.mountpoint, partition.fstype
    return kind


def lock_beside(path: Path, holder: str = "coordinator: stop that run first") -> IO[bytes]:
    """Keep other processes out while it stays open. Raises LedgerError where one is in: another ``holder``."""
    # The kernel drops this lock with the process, however it dies.
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f"{path.name}.lock").open("ab")
    except OSError as error:
        raise wrap_system(error, path) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise LedgerError(f"the ledger {path} is in use by another {holder}") from None
    return lock


def connect(path: Path) -> sqlite3.Connection:
    """A connection whose commits are on the disk when they return."""
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS
    )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def fill_log(path: Path) -> bool:
    """Give the write-ahead log its full length with zeros; whether the disk has room for it, else it stays as it is.

    Zeros are no frames: a recovery ends at them as at the end. A flush of a file that grows is a transaction of the
    file system's own, which without this each of a ledger's first commits waits for. Raises OSError.
    """
    with path.with_name(f"{path.name}-wal").open("ab", buffering=0) as log:
        length = log.tell()
        left = memoryview(bytes(max(0, LOG_BYTES - length)))
        try:
            while left:
                left = left[log.write(left) :]
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
                raise
            log.truncate(length)
            logger.info("no room for the full log of %s: it grows as it is written", path)
            return False
    return True


def check_damage(connection: sqlite3.Connection, path: Path) -> None:
    """Raises LedgerBroken for a file whose pages do not fit together."""
    if path.stat().st_size > CHECKED_BYTES_MAX:
        return
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise LedgerBroken(
            f"the ledger {path} is damaged ({found}): restore it from a copy, or start a new run;"
            " snapshots/ and objects/ of this run stay usable"
        )


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    scripts = list_migrations("rollout.ledger.sqlite")
    have = read_format(connection)
    check_format(str(path), have, len(scripts))
    for number, script in enumerate(scripts[have:], start=have + 1):
        connection.executescript(
            f"BEGIN IMMEDIATE;\n{script.read_text()}\nPRAGMA user_version = {number};\nCOMMIT;"
        )


def read_format(connection: sqlite3.Connection) -> int:
    """The ledger's format; 0 for an empty file."""
    return connection.execute("PRAGMA user_version").fetchone()[0]


def _claim_identity(connection: sqlite3.Connection, path: Path, identity: RunIdentity) -> None:
    found = connection.execute("SELECT uid, name, spec_digest, identity_format FROM run").fetchone()
    if found is None:
        now = time.time()
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            "INSERT INTO run (only, uid, name, spec_digest, created_at, identity_format)"
            " VALUES (1, ?, ?, ?, ?, ?)",
            (identity.uid, identity.name, identity.spec_digest, now, identity.identity_format),
        )
        connection.execute("INSERT INTO lineages VALUES (0, NULL, 0, 'start', ?)", (now,))
        connection.execute("COMMIT")
        return
    uid, name, spec_digest, said = found
    known = RunIdentity(uid=uid, name=name, spec_digest=spec_digest, identity_format=said)
    check_identity(str(path), known, identity, "another folder")
    if said == 0 != identity.identity_format:
        connection.execute("UPDATE run SET identity_format = ?", (identity.identity_format,))

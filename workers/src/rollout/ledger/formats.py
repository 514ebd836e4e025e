"""The numbers that a ledger carries, and who is refused by them: its own format, and that of the run's identity.

A ledger's format is the number of its last migration. It covers the tables and what their columns hold: a
body, a manifest or a plan that is written otherwise gets a migration, too, if only an empty one. A
coordinator brings an older ledger up to its own format as it opens it; a reader changes nothing.
"""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable

from rollout.errors import LedgerBelongsToAnotherRun, LedgerError
from rollout.ledger.records import RunIdentity

READ_FROM = 2
"""The oldest format that readers take as it is."""


def list_migrations(package: str) -> tuple[Traversable, ...]:
    """The scripts of one database, in order: the ledger's format is how many have run."""
    folder = files(package).joinpath("migrations")
    scripts = (item for item in folder.iterdir() if item.name.endswith(".sql"))
    return tuple(sorted(scripts, key=lambda item: item.name))


def check_format(where: str, have: int, known: int) -> None:
    """Raise LedgerError for a ledger that a newer version of rollout wrote."""
    if have > known:
        raise LedgerError(
            f"the ledger {where} has format {have}, this version of rollout knows {known}: it was"
            " written by a newer rollout; use that one"
        )


def check_readable(where: str, have: int, known: int) -> None:
    """Raise LedgerError for a ledger that cannot be read as it is: newer, or too old."""
    check_format(where, have, known)
    if have < READ_FROM:
        raise LedgerError(
            f"the ledger {where} has format {have}, this version of rollout reads {READ_FROM} to"
            f" {known}: resume its run once, which brings it up to {known}, or read it with the version"
            " that wrote it"
        )


def check_identity(where: str, found: RunIdentity, wanted: RunIdentity, cure: str) -> None:
    """Raise LedgerBelongsToAnotherRun unless a ledger's first row names this run and spec.

    Digests of two identity formats say nothing about each other: the formats are named instead.
    """
    said = found.identity_format or "none (written before ledgers said it)"
    if found.uid == wanted.uid and found.spec_digest == wanted.spec_digest:
        return
    if found.uid == wanted.uid and found.identity_format != wanted.identity_format:
        raise LedgerBelongsToAnotherRun(
            f"the ledger {where} of run {found.name} has identity format {said}, this version of rollout"
            f" writes {wanted.identity_format} (spec digest {found.spec_digest}, not"
            f" {wanted.spec_digest}): go on with the version it began with, or {cure}"
        )
    what, have, want = (
        ("UID", found.uid, wanted.uid)
        if found.uid != wanted.uid
        else ("spec digest", found.spec_digest, wanted.spec_digest)
    )
    raise LedgerBelongsToAnotherRun(
        f"the ledger {where} belongs to run {found.name} with {what} {have}, not {want}:"
        f" use that run's manifest, or {cure}"
    )

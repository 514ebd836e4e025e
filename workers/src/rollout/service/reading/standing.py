"""Where a model stands, from a few indexed reads, however many calls it has; and whether its service runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rollout.ledger.sqlite.call_reader import CallBookReader
from rollout.service.line import AHEAD_MAX
from rollout.service.reading.finding import BOOK
from rollout.service.registry import ServiceModel

LOCKS = Path("/proc/locks")


@dataclass(frozen=True, slots=True, kw_only=True)
class BookStanding:
    """``answered``: the last answered call, whose chain value is ``chain``; ``waiting`` later ones have no answer yet.

    ``missing``: the first call behind the answered ones that is not there though later ones are. Whether every call up to
    ``answered`` is there shows only who goes through them.
    """

    answered: int
    waiting: int
    missing: int | None
    chain: str

    @property
    def calls(self) -> int:
        """Calls that the book has."""
        return self.answered + self.waiting

    def words(self) -> str:
        """As ``rollout runs show`` says it."""
        if self.missing is not None:
            return f"call {self.missing} has not come, {self.waiting} later ones wait for it"
        if self.waiting:
            return f"{self.waiting} calls wait for their answers, the first is call {self.answered + 1}"
        return f"all {self.answered} calls are answered"


def read_standing(book: CallBookReader, model: ServiceModel) -> BookStanding:
    """Where a model stands. Raises LedgerError."""
    last = book.last_answered(model.id)
    answered = 0 if last is None else last.seq
    waiting = book.places(model.id, answered, AHEAD_MAX)
    holes = (at for at, seq in enumerate(waiting, answered + 1) if seq != at)
    return BookStanding(
        answered=answered,
        waiting=len(waiting),
        missing=next(holes, None),
        chain=model.chain if last is None else last.chain or "",
    )


def is_served(folder: Path) -> bool:
    """Whether a process has the book of a service's folder open to write; True where this system does not say."""
    try:
        inode = (folder / f"{BOOK}.lock").stat().st_ino
        locks = LOCKS.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return not LOCKS.exists() and (folder / BOOK).exists()
    except OSError:
        return True
    return any(_locks(line.split(), inode) for line in locks.splitlines())


def _locks(fields: list[str], inode: int) -> bool:
    """A line such as ``1: FLOCK  ADVISORY  WRITE 4711 08:01:131 0 EOF``."""
    return len(fields) > 5 and fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode)


def judge_state(standing: BookStanding, damage: str, *, served: bool) -> str:
    """One word: ``Broken``, ``Running`` (its service runs), ``Interrupted`` (calls wait and nobody makes them) or ``Stopped``."""
    if damage:
        return "Broken"
    if served:
        return "Running"
    return "Interrupted" if standing.waiting else "Stopped"

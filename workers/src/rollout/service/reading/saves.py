"""What a model was saved as, out of its book: the thing, what became of it, and the call that saved it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from rollout.errors import SpecError
from rollout.ledger.sqlite.call_reader import CallBookReader
from rollout.service.calls import SavedAnswer
from rollout.service.reading.decoding import decode_thing, kind_of
from rollout.service.reading.finding import OpenedModel
from rollout.service.reading.steps import read_calls
from rollout.service.refusals import CallRefused
from rollout.service.registry import (
    AnySaved,
    SavedChange,
    SavedStanding,
    SavedState,
    SavedVersion,
    change_standing,
    refuse_gone,
    saved_path,
    state_path,
)

SHOWN_MAX = 5
"""Names that a refusal tells."""
SAVES = frozenset({"save_weights_for_sampler", "save_state"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSave:
    """Something saved, and where: by call ``seq``, behind which the chain was ``chain``, after ``step`` steps."""

    saved: AnySaved
    seq: int
    chain: str
    step: int


def find_save(opened: OpenedModel, name: str | None, *, state: bool) -> FoundSave:
    """What a model was saved as under a name, or, None, last. Raises SpecError where it is not there any more, LedgerError."""
    there = [one for one in list_saves(opened) if isinstance(one.saved, SavedState) == state]
    named = [one for one in there if name in (None, one.saved.id.rpartition("/")[2])]
    what = "state" if state else "weights"
    if not named:
        known = ", ".join(one.saved.id.rpartition("/")[2] for one in there[-SHOWN_MAX:]) or "none"
        wanted = f"no {what} named {name!r}" if name else f"no {what}"
        raise SpecError(f"model {opened.model.id} was saved as {wanted} (there: {known})")
    found = named[-1]
    _require_there(opened.book, found.saved)
    return found


def list_saves(opened: OpenedModel) -> Iterator[FoundSave]:
    """All that has a name, in the order of their calls, whatever became of it. Raises LedgerError."""
    step = 0
    for head in opened.book.heads(opened.model.id):
        kind, answer = kind_of(head.call), kind_of(head.answer or b"")
        step += kind == "optim_step" and answer == "step"
        if kind in SAVES and answer == "saved":
            found = _saved_by(opened, head.seq, step)
            if found is not None:
                yield found


def _saved_by(opened: OpenedModel, seq: int, step: int) -> FoundSave | None:
    call = next(read_calls(opened.book, opened.model.id, seq - 1), None)
    if call is None or not isinstance(call.answer, SavedAnswer) or call.answer.name is None:
        return None
    state = call.answer.state
    path = (state_path if state else saved_path)(opened.model.id, call.answer.name)
    thing = opened.book.thing((SavedState if state else SavedVersion).__name__, path)
    saved = None if thing is None else decode_thing(thing)
    if not isinstance(saved, AnySaved):
        return None
    return FoundSave(saved=saved, seq=seq, chain=call.chain or "", step=step)


def read_changes(book: CallBookReader, saved: AnySaved) -> SavedStanding:
    """What became of something saved: its changes are numbered from 0. Raises LedgerError."""
    standing = SavedStanding(expires_at=saved.expires_at)
    for number in count():
        found = book.thing(SavedChange.__name__, f"{saved.id}#{number}")
        change = None if found is None else decode_thing(found)
        if not isinstance(change, SavedChange):
            break
        standing = change_standing(standing, change)
    return standing


def _require_there(book: CallBookReader, saved: AnySaved) -> None:
    try:
        refuse_gone(saved, read_changes(book, saved))
    except CallRefused as refusal:
        raise SpecError(str(refusal)) from refusal

"""A model's calls made again from its book, and the chain compared behind each. Nothing is written, nothing is believed.

The samplers' calls are not drawn again: they are in no chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rollout.errors import LedgerError, SpecError
from rollout.learner.model.numerics import apply_numerics, runtime_identity
from rollout.learner.model.parallel import CPU
from rollout.ledger.sqlite.call_book import BookedCall
from rollout.service.kept.making import make_call
from rollout.service.kept.replay import Replay
from rollout.service.kept.tensors import Keeper
from rollout.service.line import CallLine
from rollout.service.reading.finding import OpenedModel
from rollout.service.registry import ServiceModel, chain_of_new
from rollout.service.training.bases import TrainingBase, load_base
from rollout.service.training.trained import TrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDifference:
    """The first call that came to something else; ``call`` 0 is the model's creation, ``again`` empty: not made again."""

    call: int
    why: str
    chain: str
    again: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedModel:
    """Calls ``after`` + 1 to ``done`` were made again and came to ``chain``; ``waiting``: the book has later ones without an answer."""

    after: int
    done: int
    chain: str
    waiting: bool
    differs: CallDifference | None


def check_model(opened: OpenedModel, base_uri: str, first: int) -> CheckedModel:
    """Make the calls again, from the anchor before call ``first`` where there is one that fits.

    Raises SpecError where the base or the numerics are others than the book's, ModelNotFound, LedgerError, StoreError.
    """
    require_numerics(opened.book.identity())
    base = _load(opened.model, base_uri)
    keeper = Keeper.under(opened.folder, writes=False)
    replay = Replay(book=opened.book, keeper=keeper, bases={base.name: base})
    begun = _creation(opened.model)
    if begun is not None:
        return CheckedModel(after=0, done=0, chain="", waiting=False, differs=begun)
    line = CallLine(model_id=opened.model.id, chain=opened.model.chain)
    model = _begin(replay, opened, line, first)
    return _run(opened, keeper, model, line)


def require_numerics(recorded: Mapping[str, str]) -> None:
    """Take over the book's thread count. Raises SpecError where this machine comes to other numbers."""
    threads = recorded.get("threads", "1")
    apply_numerics(threads=int(threads) if threads.isdecimal() else 1, exact=True)
    here = runtime_identity(world_size=1, device=CPU)
    parts = [
        f"{name} was {value}, is {here.get(name, 'absent')}"
        for name, value in sorted(recorded.items())
        if here.get(name) != value
    ]
    if parts:
        raise SpecError(
            f"the book cannot be made again here to the same numbers: {'; '.join(parts)}; compare where it was written"
        )


def _load(model: ServiceModel, uri: str) -> TrainingBase:
    base = replace(load_base(f"base={uri}"), name=model.base)
    if base.digest != model.base_digest:
        raise SpecError(
            f"--base {uri}: it is {base.digest}, the model is over {model.base_digest}; name the base as it was"
        )
    return base


def _creation(model: ServiceModel) -> CallDifference | None:
    again = chain_of_new(model.base_digest, model.adapter, model.start)
    if again == model.chain:
        return None
    why = "its base, adapter and start are not those that its first chain value is of"
    return CallDifference(call=0, why=why, chain=model.chain, again=again)


def _begin(replay: Replay, opened: OpenedModel, line: CallLine, first: int) -> TrainedModel:
    """From the anchor, where it is before ``first``; else from the creation."""
    if first > 1:
        model = replay.from_anchor(opened.model, line)
        if model is not None and line.done < first:
            return model
        line.done, line.chain = 0, opened.model.chain
    return replay.build(opened.model)


def _run(opened: OpenedModel, keeper: Keeper, model: TrainedModel, line: CallLine) -> CheckedModel:
    after, waiting, hole = line.done, False, None
    for found in opened.book.each(line.model_id, line.done):
        one = found.booked
        if one.answer is None or one.seq != line.done + 1:
            waiting, hole = True, hole or line.done + 1
        if one.answer is None:
            continue
        differs = _hole(one, hole) if hole else _compare(model, keeper, line, one)
        if differs is not None:
            return CheckedModel(
                after=after, done=line.done, chain=line.chain, waiting=waiting, differs=differs
            )
        line.finish(one.chain or "")
    return CheckedModel(
        after=after, done=line.done, chain=line.chain, waiting=waiting, differs=None
    )


def _hole(one: BookedCall, hole: int) -> CallDifference:
    why = f"it is not answered in the book, though call {one.seq} is"
    return CallDifference(call=hole, why=why, chain="")


def _compare(
    model: TrainedModel, keeper: Keeper, line: CallLine, one: BookedCall
) -> CallDifference | None:
    known = one.chain or ""
    try:
        made = make_call(model, keeper, line.chain, one)
    except LedgerError as error:
        return CallDifference(call=one.seq, why=str(error), chain=known)
    if made.answer != one.answer:
        return CallDifference(
            call=one.seq, why="its answer is another", chain=known, again=made.chain
        )
    if made.chain != known:
        why = "its answer is the same, the state behind it or its chain value is another"
        return CallDifference(call=one.seq, why=why, chain=known, again=made.chain)
    return None

"""The reference of an offline run behind a cache: what it has said of an answer is not computed again.

A float sum depends on what else is in the row, so that a cached number is not the one which this step's
micro-batch would have given. In Exact, therefore, the reference scores *every item in a row of its own*,
found or not: its numbers then depend on the item alone, and neither the cut, nor the order, nor what the
cache holds shows in the hash chain. In Fast what is missing of a micro-batch is scored together.

The file's name covers everything else that decides a number: model files, quantization, number format,
runtime, and which of the two cuts. Renderer, template and truncation decide tokens, and those are the key.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from itertools import chain

import torch
from blake3 import blake3
from torch import Tensor, nn

from rollout.learner.forward.packed_rows import GroupTokens, build_group_row, token_logprobs
from rollout.learner.model.parallel import Parallel
from rollout.learner.objectives.plan import MicroBatch
from rollout.learner.objectives.preference.batch import answer_sums, positions_of
from rollout.learner.objectives.preference.reference_store import ReferenceStore

FORMAT = 1
KEY_BYTES = 16
Keys = Mapping[GroupTokens, list[bytes]]
"""By item, one for each answer."""


def store_name(facts: Mapping[str, str]) -> str:
    """A file's name from what decides the numbers in it."""
    libraries = {name: version(name) for name in ("rollout-rl", "transformers")}
    known = {**facts, **libraries, "format": str(FORMAT)}
    return blake3(json.dumps(known, sort_keys=True).encode()).hexdigest()


def answer_keys(group: GroupTokens) -> list[bytes]:
    """A key for each answer of an item; all of its tokens count, since they share a row."""
    integers = array("q", [len(group.prompt_ids), *group.prompt_ids])
    for answer in group.completion_ids:
        integers.extend((len(answer), *answer))
    item = blake3(integers.tobytes())
    return [
        item.copy().update(index.to_bytes(4, "little")).digest(length=KEY_BYTES)
        for index in range(len(group.completion_ids))
    ]


class ReferenceCache:
    """Logprobs of whole answers under a frozen ``model``, kept in ``store``.

    ``alone`` scores every item in a row of its own. ``lockstep``: the model is sharded, so all ranks must
    compute equally often.
    """

    def __init__(
        self,
        model: nn.Module,
        store: ReferenceStore,
        parallel: Parallel,
        *,
        alone: bool,
        lockstep: bool = False,
    ) -> None:
        self._model = model
        self._store = store
        self._parallel = parallel
        self._alone = alone
        self._lockstep = lockstep

    def sums(self, micros: Sequence[Sequence[GroupTokens]]) -> list[Tensor]:
        """Nats of every item's answers ``[answers]``, in order, for micro-batches of items.

        With ``lockstep`` a collective.
        """
        keys = {group: answer_keys(group) for group in chain.from_iterable(micros)}
        missing = self._missing(keys)
        rows = [[group] for group in missing]
        if not self._alone:
            rows = [row for micro in micros if (row := [g for g in micro if g in missing])]
        fresh = self._compute(rows, keys)
        self._store.add(fresh)
        return [self._read(keys[group], fresh) for group in chain.from_iterable(micros)]

    def _missing(self, keys: Keys) -> dict[GroupTokens, None]:
        """Items that nobody has scored yet, in order."""
        missing = [group for group in keys if not self._has(keys[group])]
        if missing:
            self._store.refresh()
        return {group: None for group in missing if not self._has(keys[group])}

    def _compute(self, rows: Sequence[Sequence[GroupTokens]], keys: Keys) -> dict[bytes, float]:
        idle = self._count_idle(len(rows))  # before the first row: computing is a collective
        found: dict[bytes, float] = {}
        for row in rows:
            names = chain.from_iterable(keys[group] for group in row)
            found |= zip(names, self._score(row).tolist(), strict=True)
        for _ in range(idle):
            self._score([next(iter(keys))])
        return found

    def _count_idle(self, num_rows: int) -> int:
        """Rows that this rank computes for nothing, while another still has some."""
        if not self._lockstep:
            return 0
        return max(self._parallel.gather(num_rows, int)) - num_rows

    def _score(self, row: Sequence[GroupTokens]) -> Tensor:
        packed = build_group_row(row).to(self._parallel.device)
        with torch.no_grad():
            return answer_sums(token_logprobs(self._model, packed), packed)

    def _has(self, keys: Sequence[bytes]) -> bool:
        return all(self._store.get(key) is not None for key in keys)

    def _read(self, keys: Sequence[bytes], fresh: Mapping[bytes, float]) -> Tensor:
        """float32, as it was computed: a float64 holds it whole."""
        values = [fresh[key] if key in fresh else self._store.get(key) for key in keys]
        return torch.tensor(values, dtype=torch.float32, device=self._parallel.device)


def cached_sums(
    cache: ReferenceCache, passes: Iterable[MicroBatch], group_of: Callable[[int], GroupTokens]
) -> dict[int, Tensor]:
    """What the reference says of the items in ``passes``, by their position in the step."""
    micros = [positions_of(micro) for micro in passes]
    sums = cache.sums([[group_of(i) for i in positions] for positions in micros])
    return dict(zip(chain.from_iterable(micros), sums, strict=True))

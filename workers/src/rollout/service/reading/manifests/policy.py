"""A loop like GRPO: groups of completions of a prompt, each with an advantage that is centred on its group."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollout.rendering.plain import PlainRenderer
from rollout.service.calls import CLIPS, ForwardBackward, LossAnswer, SampleAnswer, SampleCall
from rollout.service.reading.decoding import ReadCall
from rollout.service.reading.finding import OpenedModel
from rollout.service.reading.manifests.loop import LoopRefused, RecordedLoop
from rollout.service.reading.manifests.rows import LearnedRow, read_policy, write_row
from rollout.service.reading.manifests.supervised import WriteRow, WrittenRows
from rollout.service.reading.samples import read_samples
from rollout.service.reading.steps import StepFold, read_calls

CENTRED_MAX = 1e-3
"""The mean of a group's advantages, as a share of the largest, that still counts as 0."""
UNIT_MAX = 0.02
"""How far the spread of a group may be from 1 to count as divided by it."""
SETTINGS_MAX = 64


Groups = dict[tuple[int, ...], list[float]]
"""Advantages by the prompt's ids."""


@dataclass(slots=True, kw_only=True)
class StepGroups:
    """Owns the groups of the step that is read; of those before it only what is to be said of them (``learned``: hashes of prompts)."""

    sizes: Counter[int] = field(default_factory=Counter)
    counts: Counter[int] = field(default_factory=Counter)
    trained: int = 0
    with_signal: int = 0
    of_unit_spread: int = 0
    longest: int = 1
    learned: set[int] = field(default_factory=set)
    _groups: Groups = field(default_factory=dict)

    def take(self, row: LearnedRow) -> None:
        """The next completion."""
        self._groups.setdefault(row.prompt, []).append(row.value)
        self.trained += 1
        self.longest = max(self.longest, len(row.answer))

    def end_step(self, step: int) -> list[tuple[int, ...]]:
        """The step was taken: its prompts. Raises LoopRefused for a group whose advantages are not centred."""
        groups = merge_certain(self._groups)
        for values in groups.values():
            self._check(step, np.asarray(values))
            self.sizes[len(values)] += 1
        self.counts[len(groups)] += 1
        self.learned.update(map(hash, groups))
        self._groups = {}
        return list(groups)

    def _check(self, step: int, values: np.ndarray) -> None:
        largest = np.abs(values).max()
        if largest == 0:
            return
        if abs(values.mean()) > CENTRED_MAX * largest:
            raise LoopRefused(
                f"step {step}: the advantages of {len(values)} completions of one prompt have the mean"
                f" {values.mean():.4g}, and those of a group are centred on 0: no algorithm of a manifest has such"
            )
        self.with_signal += 1
        spreads = (values.std(), values.std(ddof=1))
        self.of_unit_spread += any(abs(one - 1) <= UNIT_MAX for one in spreads)


def merge_certain(groups: Groups) -> Groups:
    """The same groups; completions without an advantage are put with the prompt that they begin with.

    A first token that was certain has the logprob 0, as the tokens of a prompt have: it was read as one of them.
    """
    found: Groups = {}
    for prompt in sorted(groups, key=lambda one: (len(one), not any(groups[one]))):
        shorter = next((one for one in found if prompt[: len(one)] == one), None)
        certain = shorter is not None and not any(groups[prompt])
        found.setdefault(shorter if shorter is not None and certain else prompt, []).extend(
            groups[prompt]
        )
    return found


@dataclass(slots=True, kw_only=True)
class RecordedSampling:
    """How completions were drawn: settings by their calls; and how many prompts a step had, and a prompt completions; ``asked``: hashes of prompts."""

    settings: Counter[tuple[tuple[str, Any], ...]] = field(default_factory=Counter)
    prompts: Counter[int] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)
    completions: int = 0
    asked: set[int] = field(default_factory=set)
    _step: int = -1
    _asked: Counter[tuple[int, ...]] = field(default_factory=Counter)

    def take(self, step: int, call: SampleCall, answer: SampleAnswer) -> None:
        """The next call, of the sampler after ``step``."""
        key = tuple((name, getattr(call, name)) for name in sampling_fields(call))
        if key in self.settings or len(self.settings) < SETTINGS_MAX:
            self.settings[key] += 1
        if step != self._step:
            self.end_step()
            self._step = step
        self._asked[call.prompt] += len(answer.sequences)
        self.asked.add(hash(call.prompt))
        self.completions += len(answer.sequences)

    def end_step(self) -> None:
        """No more is sampled from the weights after this step."""
        if self._asked:
            self.prompts[len(self._asked)] += 1
            self.sizes.update(self._asked.values())
        self._asked = Counter()


def sampling_fields(call: SampleCall) -> list[str]:
    """The fields of a call that say how is drawn; not what, and with which noise."""
    return [name for name in call.__struct_fields__ if name not in ("prompt", "seeds")]


def write_policy(
    opened: OpenedModel, loop: RecordedLoop, renderer: PlainRenderer, write: WriteRow
) -> tuple[dict[str, Any], list[str]]:
    """Write the prompts; the parts of ``spec.train`` that are of this algorithm, and what they leave out. Raises LoopRefused."""
    prompts = _Prompts(renderer=renderer, write=write)
    sampling = _read_sampling(opened, prompts)
    groups = _read_groups(opened, prompts)
    if max(groups.sizes, default=0) < 2 or not groups.with_signal:
        raise LoopRefused(
            "no prompt has two completions in a step with advantages other than 0: nothing shows that they are of groups"
        )
    algorithm, said = _algorithm(loop, groups)
    if sampling.prompts:
        algorithm["promptsPerStep"] = max(_usual(sampling.prompts), 1)
        algorithm["groupSize"] = max(_usual(sampling.sizes), 2)
    drawn, left = _sampling(sampling, groups, renderer)
    settings = {
        "algorithm": {"grpo": algorithm},
        "data": {"jsonl": {"uri": "rows.jsonl"}, "shuffle": True},
        "rewards": [{"python": {"path": "reward.py", "function": "reward"}}],
        "sampling": drawn,
        "oldLogprobs": "Actor",
    }
    unused = len(sampling.asked - groups.learned)
    if unused:
        left.append(
            f"{unused} prompts were sampled and never learned from (groups that were all alike, or an evaluation): they"
            " are in the data"
        )
    return settings, [*said, *left, *_always(groups, sampling)]


@dataclass(slots=True, kw_only=True)
class _Prompts:
    """Owns which prompts are in the data already."""

    renderer: PlainRenderer
    write: WriteRow
    written: WrittenRows = field(default_factory=WrittenRows)

    def take(self, ids: tuple[int, ...]) -> None:
        """The next prompt, which may have come before. Raises LoopRefused for one too many."""
        row = LearnedRow(prompt=ids, answer=(), value=0.0)
        if self.written.is_new(row):
            self.write({"prompt": write_row(self.renderer, row).prompt})


def _read_sampling(opened: OpenedModel, prompts: _Prompts) -> RecordedSampling:
    found = RecordedSampling()
    for one, sample in read_samples(opened.book, opened.model):
        if isinstance(sample.answer, SampleAnswer):
            found.take(one.step, sample.call, sample.answer)
            prompts.take(sample.call.prompt)
    found.end_step()
    return found


def _read_groups(opened: OpenedModel, prompts: _Prompts) -> StepGroups:
    groups, fold = StepGroups(), StepFold()
    for one in read_calls(opened.book, opened.model.id):
        for row in _rows(one):
            groups.take(row)
        step = fold.take(one)
        for ids in () if step is None else groups.end_step(step.step):
            prompts.take(ids)
    return groups


def _usual(counts: Counter[int]) -> int:
    return counts.most_common(1)[0][0]


def _rows(one: ReadCall) -> list[LearnedRow]:
    if not isinstance(one.call, ForwardBackward) or not isinstance(one.answer, LossAnswer):
        return []
    found = [
        read_policy(f"call {one.seq}, data[{place}]", datum)
        for place, datum in enumerate(one.call.data if one.call.backward else ())
    ]
    return [row for row in found if row is not None]


def _algorithm(loop: RecordedLoop, groups: StepGroups) -> tuple[dict[str, Any], list[str]]:
    (loss,) = loop.losses
    config = {**CLIPS.get(loss, CLIPS["ppo"]), **dict(loop.configs.most_common(1)[0][0])}
    low, high = 1 - float(config["clip_low_threshold"]), float(config["clip_high_threshold"]) - 1
    scaled = 2 * groups.of_unit_spread > groups.with_signal
    found: dict[str, Any] = {
        "promptsPerStep": max(groups.counts),
        "groupSize": max(groups.sizes),
        "aggregation": "SequenceSum",
        "advantageScale": "Group" if scaled else "None",
    }
    said: list[str] = []
    if loss in {"ppo", "gspo"}:
        found |= {"ratio": "Sequence"} if loss == "gspo" else {}
        found |= {"surrogate": {"clipped": {}}, "clipLow": number(low), "clipHigh": number(high)}
    elif loss == "cispo":
        bounds = {"clipLow": number(low), "clipHigh": number(high)}
        found["surrogate"] = {"cispo": {"relative": bounds}}
    else:
        found |= {"surrogate": {"clipped": {}}, "clipLow": "0.999999", "clipHigh": "1000"}
        said.append("importance_sampling is written as a clip whose bounds a ratio does not reach")
    if len(loop.configs) > 1:
        said.append(
            f"the loss had {len(loop.configs)} settings in turn: the manifest has the most frequent"
        )
    return found, said


def _sampling(
    sampling: RecordedSampling, groups: StepGroups, renderer: PlainRenderer
) -> tuple[dict[str, Any], list[str]]:
    if not sampling.settings:
        why = "nothing was sampled from this model by this service: temperature and limits are not known"
        return {"maxNewTokens": groups.longest}, [why]
    call = dict(sampling.settings.most_common(1)[0][0])
    found: dict[str, Any] = {
        "temperature": number(call.pop("temperature")),
        "maxNewTokens": call.pop("max_tokens"),
    }
    stop, ids = list(call.pop("stop")), call.pop("stop_ids")
    more = [one for one in ids if one not in renderer.stop_token_ids]
    found |= {"stop": stop} if stop else {}
    found |= {"stopTokenIds": more} if more else {}
    said = []
    if len(sampling.settings) > 1:
        said.append(
            f"sampling calls had {len(sampling.settings)} settings: the manifest has the most frequent"
        )
    if any(one not in ids for one in renderer.stop_token_ids):
        said.append("completions did not end at the model's end token, and those of a run do")
    defaults = {name: one for name, one in call.items() if one not in _unset(name)}
    said += [
        f"sampling: {name} {value} is in no manifest's training" for name, value in defaults.items()
    ]
    return found, said


def _unset(name: str) -> tuple[Any, ...]:
    """Values of a sampling field that change nothing; those of fields that came later are their structs' defaults."""
    from msgspec.structs import fields

    known = {one.name: one.default for one in fields(SampleCall)}
    return (known.get(name), None, False) if name != "prompt_logprobs" else (True, False)


def _always(groups: StepGroups, sampling: RecordedSampling) -> list[str]:
    said = [
        "rewards were computed elsewhere: supply them in reward.py, which refuses to be called until you do",
        (
            "losses were sums over the tokens of all completions: the run takes the mean over completions of their sums;"
            " of AdamW epsilon and gradient clipping alone see the scale"
        ),
        (
            "advantages are what the loop made of its rewards; a scale other than the group's spread, and leave-one-out, are"
            " not told from it"
        ),
    ]
    if len(groups.sizes) > 1:
        said.append(f"groups had {_range(groups.sizes)} completions: the manifest has one size")
    if len(groups.counts) > 1:
        said.append(
            f"steps had {_range(groups.counts)} groups that were learned from: the manifest has one number"
        )
    if sampling.completions and groups.trained > sampling.completions:
        said.append(
            f"{groups.trained} completions were learned from and {sampling.completions} sampled: set epochs or"
            " miniBatches where they were learned from several times"
        )
    return said


def _range(counts: Counter[int]) -> str:
    return f"{min(counts)} to {max(counts)}"


def number(value: float) -> str:
    """A number as manifests have it: a decimal string, of the float32 that a client may have sent."""
    return f"{value:.10g}"

"""Our learner and TRL 1.16's policy trainers on the same recorded completions."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from agreement_kit import (
    EXACT,
    REFERENCE_NOISE,
    STEPS,
    Arithmetic,
    Seen,
    prepared,
    take_steps,
    train,
    trl_options,
)

from rollout.algorithms.grpo import GrpoSettings
from rollout.algorithms.surrogates.cispo import Cispo
from rollout.algorithms.surrogates.clip import Clipped
from rollout.algorithms.surrogates.gmpo import Gmpo
from rollout.algorithms.surrogates.sapo import Sapo
from rollout.algorithms.surrogates.vespo import Vespo
from rollout.learner.config.policy import PolicySettings, RewardKl
from rollout.learner.model.policy import load_model
from rollout.learner.objectives.policy import Place, PolicyWork
from rollout.types import Trajectory, TrajectoryGroup, VersionSpan

PROMPTS, GROUP, PROMPT_TOKENS, WIDTH = 2, 4, 5, 8


def plain_logprobs(model: Any, ids: torch.Tensor, attention: torch.Tensor, keep: int) -> Any:
    """Logprobs and entropies of the last ``keep`` tokens, by the model's own forward."""
    logits = model(input_ids=ids, attention_mask=attention).logits[:, -keep - 1 : -1]
    logp = logits.log_softmax(-1)
    chosen = logp.gather(-1, ids[:, -keep:, None])[..., 0]
    return chosen, -(logp.exp() * logp).sum(-1)


@dataclass(frozen=True, kw_only=True)
class Record:
    """One step's samples, group after group; ``old`` are the logprobs they were sampled under."""

    prompts: list[list[int]]
    completions: list[list[int]]
    rewards: list[float]
    old: list[list[float]]

    def groups(self, step: int) -> tuple[TrajectoryGroup, ...]:
        """As the coordinator gives them."""

        def one(index: int) -> Trajectory:
            length = len(self.completions[index])
            return Trajectory(
                ordinal=index // GROUP,
                sample=index % GROUP,
                prompt_ids=tuple(self.prompts[index]),
                token_ids=tuple(self.completions[index]),
                actor_logprobs=tuple(self.old[index]),
                loss_mask=(1,) * length,
                spans=(VersionSpan(start=0, end=length, lineage=0, step=step - 1),),
                rewards={},
                reward=self.rewards[index],
                ending="stop",
            )

        return tuple(
            TrajectoryGroup(ordinal=p, trajectories=tuple(one(p * GROUP + g) for g in range(GROUP)))
            for p in range(PROMPTS)
        )

    def padded_old(self) -> torch.Tensor:
        """``[B, T]``, 0 after the end."""
        width = max(map(len, self.old))
        return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in self.old])


def record(model: Any, step: int) -> Record:
    """Random completions and rewards; old logprobs lie around the model's own, 0.2 apart."""
    draw = random.Random(step)
    prompts = [[draw.randrange(250) for _ in range(PROMPT_TOKENS)] for _ in range(PROMPTS)]
    prompts = [prompt for prompt in prompts for _ in range(GROUP)]
    completions = [
        [draw.randrange(250) for _ in range(draw.randint(1, WIDTH))] for _ in range(len(prompts))
    ]
    old = []
    for prompt, completion in zip(prompts, completions, strict=True):
        ids = torch.tensor([prompt + completion])
        with torch.no_grad():
            found, _ = plain_logprobs(model, ids, torch.ones_like(ids), len(completion))
        old.append([value + draw.gauss(0, 0.2) for value in found[0].tolist()])
    rewards = [draw.choice([0.0, 0.25, 1.0, 3.0]) for _ in prompts]
    return Record(prompts=prompts, completions=completions, rewards=rewards, old=old)


def make_records(path: Path, arithmetic: Arithmetic = EXACT) -> list[Record]:
    """Every step's samples."""
    model = prepared(load_model(path), arithmetic)
    return [record(model, step) for step in range(1, STEPS + 1)]


def ours(
    path: Path, records: list[Record], algorithm: PolicySettings, arithmetic: Arithmetic = EXACT
) -> Seen:
    reference = None
    if algorithm.needs_reference:
        reference = prepared(load_model(path), arithmetic, REFERENCE_NOISE)
    place = Place(device=torch.device("cpu"), dtype=arithmetic.dtype)
    works = (
        PolicyWork(recorded.groups(step), algorithm, place, reference)
        for step, recorded in enumerate(records, start=1)
    )
    return take_steps(prepared(load_model(path), arithmetic), algorithm, works, arithmetic)


def trl_class(base: str, kind: str) -> Any:
    import trl

    if base == "GMPO":
        from trl.experimental import gmpo as trl

    return getattr(trl, f"{base}{kind}")


def generated(base: str, now: Record) -> tuple[Any, ...]:
    """What ``_generate`` of each trainer returns."""
    texts = ["" for _ in now.prompts]
    if base == "RLOO":
        return now.prompts, now.completions, texts
    return now.prompts, now.completions, None, texts, None, {}, None, None


def recorded_trainer(base: str, records: list[Record], arithmetic: Arithmetic) -> type:
    """TRL's trainer ``base`` with what is recorded in place of its generation and scoring.

    In float64 its fused head, which rounds to float32, is replaced too.
    """

    class Recorded(trl_class(base, "Trainer")):
        @property
        def now(self) -> Record:
            return records[self.state.global_step]

        def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
            return generated(base, self.now)

        def _calculate_rewards(self, *given: Any) -> torch.Tensor:
            return torch.tensor(self.now.rewards)[:, None]

        def _get_per_token_logps_and_entropies(
            self, model: Any, ids: Any, attention: Any, keep: int, *given: Any, **more: Any
        ) -> tuple[Any, ...]:
            if model is self.model and not torch.is_grad_enabled():
                return self.now.padded_old(), None, None
            if not arithmetic.is_exact:
                found = super()._get_per_token_logps_and_entropies
                return found(model, ids, attention, keep, *given, **more)
            return (*plain_logprobs(model, ids, attention, keep), None)

        def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
            output = super()._generate_and_score_completions(inputs)
            return output | {"old_per_token_logps": self.now.padded_old()}

    return Recorded


def theirs(
    path: Path,
    records: list[Record],
    folder: Path,
    settings: dict[str, Any],
    arithmetic: Arithmetic = EXACT,
) -> Seen:
    """``base`` in the settings is the trainer's name; a ``beta`` is given after it was built."""
    from datasets import Dataset
    from transformers import AutoTokenizer

    given = dict(settings)
    base, beta = given.pop("base", "GRPO"), given.pop("beta", 0.0)
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.chat_template = None
    options = trl_options(folder, arithmetic, PROMPTS * GROUP) | given
    trainer = recorded_trainer(base, records, arithmetic)(
        prepared(load_model(path), arithmetic),
        args=trl_class(base, "Config")(
            num_generations=GROUP, max_completion_length=WIDTH, beta=0.0, **options
        ),
        train_dataset=Dataset.from_list([{"prompt": "x"}] * 64),
        processing_class=tokenizer,
        reward_funcs=lambda completions, **rest: [0.0 for _ in completions],
    )
    if beta:
        trainer.beta, trainer.ref_model = beta, reference_of(path, arithmetic)
    return train(trainer)


def reference_of(path: Path, arithmetic: Arithmetic) -> Any:
    """The frozen model with the head that a trainer of TRL expects of it."""
    model = prepared(load_model(path), arithmetic, REFERENCE_NOISE)
    if not arithmetic.is_exact:
        from trl.trainer.grpo_trainer import add_fused_lm_head

        add_fused_lm_head(model)
    return model


GRPO = PolicySettings(
    loss=GrpoSettings(surrogate=Clipped(high=0.28)),
    advantage_scale="Group",
    advantage_epsilon=1e-4,
    old_logprobs="Actor",
    temperature=1.0,
    width=WIDTH,
)
RLOO = replace(
    GRPO,
    loss=GrpoSettings(ratio="SequenceProduct", aggregation="SequenceMean"),
    advantage_scale="None",
    advantage_baseline="LeaveOneOut",
)
CLIP = {"epsilon": 0.2, "epsilon_high": 0.28, "scale_rewards": "group"}
CASES: dict[str, tuple[PolicySettings, dict[str, Any]]] = {
    "dapo": (GRPO, CLIP | {"loss_type": "dapo"}),
    "grpo": (
        replace(GRPO, loss=replace(GRPO.loss, aggregation="SequenceMean")),
        CLIP | {"loss_type": "grpo"},
    ),
    "dr_grpo": (
        replace(GRPO, advantage_scale="None", loss=replace(GRPO.loss, aggregation="FixedLength")),
        CLIP | {"loss_type": "dr_grpo", "scale_rewards": "none"},
    ),
    "bnpo": (
        replace(GRPO, advantage_scale="Batch"),
        CLIP | {"loss_type": "bnpo", "scale_rewards": "batch"},
    ),
    "kl in the loss": (
        replace(GRPO, loss=replace(GRPO.loss, kl_coefficient=0.1, kl_estimator="K3Corrected")),
        CLIP | {"loss_type": "dapo", "beta": 0.1, "use_bias_correction_kl": True},
    ),
    "gspo": (
        replace(GRPO, loss=replace(GRPO.loss, aggregation="SequenceMean", ratio="Sequence")),
        CLIP | {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    ),
    "luspo": (
        replace(GRPO, loss=replace(GRPO.loss, aggregation="SequenceSum", ratio="Sequence")),
        CLIP | {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    ),
    "cispo": (
        replace(GRPO, loss=GrpoSettings(surrogate=Cispo(ratio_max=1.1))),
        CLIP | {"loss_type": "cispo", "epsilon_high": 1.1},
    ),
    "sapo": (
        replace(GRPO, loss=GrpoSettings(surrogate=Sapo(), aggregation="SequenceMean")),
        CLIP | {"loss_type": "sapo"},
    ),
    "gmpo": (
        replace(
            GRPO,
            loss=GrpoSettings(
                surrogate=Gmpo(log_clip_low=0.1, log_clip_high=0.2), aggregation="SequenceMean"
            ),
        ),
        {"base": "GMPO", "epsilon": 0.1, "epsilon_high": 0.2},
    ),
    "vespo": (
        replace(GRPO, loss=GrpoSettings(surrogate=Vespo())),
        CLIP | {"loss_type": "vespo"},
    ),
    "rloo": (RLOO, {"base": "RLOO", "epsilon": 0.2}),
    "rloo with kl": (
        replace(RLOO, reward_kl=RewardKl(coefficient=0.05, estimator="K1")),
        {"base": "RLOO", "epsilon": 0.2, "beta": 0.05},
    ),
}

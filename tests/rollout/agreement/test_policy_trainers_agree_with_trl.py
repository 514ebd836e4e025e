"""Our learner and TRL 1.16's trainers, side by side on the same recorded completions, in float64.

Both take 20 steps of SGD from the same weights; prompts, completions, rewards and the logprobs they were
sampled under (so that no ratio is 1) are recorded. TRL runs its own ``train``: advantages, loss, backward
and optimizer are its. Only what would round to float32 is replaced, on its side the fused head, the
reward tensor and the generation, on both sides the norm; prompts have one length, since padding moves
positions and rotary angles are float32. Ours is ``run_step`` on a ``PolicyWork``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rollout.algorithms.cispo import Cispo
from rollout.algorithms.clip import Clipped
from rollout.algorithms.gmpo import Gmpo
from rollout.algorithms.grpo import GrpoSettings
from rollout.algorithms.sapo import Sapo
from rollout.algorithms.vespo import Vespo
from rollout.learner.numerics import apply_numerics
from rollout.learner.optim import build_optimizer
from rollout.learner.parallel import Parallel
from rollout.learner.plan import PlanRules, plan_step
from rollout.learner.policy import Policy, load_model
from rollout.learner.policy_settings import PolicySettings, RewardKl
from rollout.learner.policy_work import Place, PolicyWork
from rollout.learner.settings import LearnerSettings, OptimizerSettings, ScheduleSettings
from rollout.learner.step import Trainer, run_step
from rollout.models.resolve import resolve_model
from rollout.types import Trajectory, TrajectoryGroup, VersionSpan

pytestmark = pytest.mark.process

STEPS, PROMPTS, GROUP, PROMPT_TOKENS, WIDTH = 20, 2, 4, 5, 8
RATE = 0.02
CLOSE = 1e-8


class ExactNorm(nn.Module):
    """The root-mean-square norm in its input's precision."""

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = weight, epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * self.weight


def float64_model(path: Path, noise: int = 0) -> Any:
    """The model in float64; ``noise`` > 0 moves every weight a little, another way for each number."""
    model = load_model(path).double()
    for name, module in list(model.named_modules()):
        if hasattr(module, "variance_epsilon"):
            parent = model.get_submodule(name.rpartition(".")[0])
            exact = ExactNorm(module.weight, module.variance_epsilon)
            setattr(parent, name.rpartition(".")[2], exact)
    draw = torch.Generator().manual_seed(noise)
    with torch.no_grad():
        for parameter in model.parameters() if noise else ():
            moved = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
            parameter.add_(0.02 * moved)
    return model


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


@dataclass(kw_only=True)
class Seen:
    """What both sides say: the gradient's norm at each step, and the parameters after the last."""

    norms: list[float]
    parameters: dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    apply_numerics(threads=1, exact=True)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    uri = "rollout://tiny-qwen2?hidden=32&layers=2&heads=2"
    return resolve_model(uri, cache_dir=tmp_path_factory.mktemp("models")).path


@pytest.fixture(scope="module")
def records(path: Path) -> list[Record]:
    model = float64_model(path)
    return [record(model, step) for step in range(1, STEPS + 1)]


def ours(path: Path, records: list[Record], algorithm: PolicySettings) -> Seen:
    settings = LearnerSettings(
        algorithm=algorithm,
        optimizer=OptimizerSettings(kind="sgd", learning_rate=RATE),
        schedule=ScheduleSettings(),
        max_grad_norm=0.0,
        micro_batch_tokens=4096,
        activation_checkpointing=False,
        dtype="Float32",
        exact=True,
        hash_every_steps=1,
        anchor_every_steps=100,
        seed=0,
        spec_digest="",
    )
    policy = Policy(float64_model(path), torch.float32, Parallel())
    optimizer = build_optimizer(policy.masters.values(), settings.optimizer)
    trainer = Trainer(policy=policy, optimizer=optimizer, settings=settings)
    reference = float64_model(path, noise=3) if algorithm.needs_reference else None
    place = Place(device=torch.device("cpu"), dtype=torch.float64)
    norms = []
    for step, recorded in enumerate(records, start=1):
        work = PolicyWork(recorded.groups(step), algorithm, place, reference)
        plan = plan_step(work.shapes(), PlanRules(tokens_max=4096), seed=0, step=step)
        norms.append(run_step(trainer, work, plan, step)["gradient_norm"])
    return Seen(norms=norms, parameters=policy.full_masters())


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


def recorded_trainer(base: str, records: list[Record]) -> type:
    """TRL's trainer ``base`` with what is recorded in place of its generation and scoring."""

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
            return (*plain_logprobs(model, ids, attention, keep), None)

        def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
            output = super()._generate_and_score_completions(inputs)
            if base != "RLOO":
                output["old_per_token_logps"] = self.now.padded_old()
            return output

    return Recorded


def norms_callback(seen: list[float]) -> Any:
    """Writes down the gradient's norm before every optimizer step."""
    from transformers import TrainerCallback

    class Norms(TrainerCallback):
        def on_pre_optimizer_step(self, *given: Any, model: Any, **more: Any) -> None:
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            seen.append(float(torch.nn.utils.get_total_norm(gradients)))

    return Norms()


def trl_config(base: str, folder: Path, settings: dict[str, Any]) -> Any:
    return trl_class(base, "Config")(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=PROMPTS * GROUP,
        num_generations=GROUP,
        max_completion_length=WIDTH,
        optim="sgd",
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        gradient_checkpointing=False,
        max_steps=STEPS,
        beta=0.0,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **settings,
    )


def theirs(
    path: Path, records: list[Record], folder: Path, base: str, settings: dict[str, Any]
) -> Seen:
    """``base`` is the trainer's name; a ``beta`` of the settings is given after it was built."""
    from datasets import Dataset
    from transformers import AutoTokenizer

    given = dict(settings)
    beta = given.pop("beta", 0.0)
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.chat_template = None
    norms: list[float] = []
    trainer = recorded_trainer(base, records)(
        float64_model(path),
        args=trl_config(base, folder, given),
        train_dataset=Dataset.from_list([{"prompt": "x"}] * 64),
        processing_class=tokenizer,
        reward_funcs=lambda completions, **rest: [0.0 for _ in completions],
        callbacks=[norms_callback(norms)],
    )
    if beta:
        trainer.beta, trainer.ref_model = beta, float64_model(path, noise=3)
    trainer.train()
    parameters = {name: p.detach() for name, p in trainer.model.named_parameters()}
    return Seen(norms=norms, parameters=parameters)


def flat(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([parameters[name].detach().flatten() for name in sorted(parameters)])


def farthest(a: Seen, b: Seen, path: Path) -> tuple[float, float]:
    """Largest relative distance of the norms over the steps; that of the parameters after the last.

    Parameters are measured against the way they went, a small part of their own size.
    """
    norms = max(abs(x - y) / y for x, y in zip(a.norms, b.norms, strict=True))
    assert a.parameters.keys() == b.parameters.keys()
    way = flat(b.parameters) - flat(dict(float64_model(path).named_parameters()))
    apart = flat(a.parameters) - flat(b.parameters)
    return norms, float(apart.norm() / way.norm())


GRPO = PolicySettings(
    loss=GrpoSettings(surrogate=Clipped(high=0.28)),
    advantage_scale="Group",
    advantage_epsilon=1e-4,
    old_logprobs="Actor",
    temperature=1.0,
    width=WIDTH,
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
}


@pytest.mark.parametrize("name", CASES)
def test_the_grpo_family_takes_the_same_steps(name, path, records, tmp_path) -> None:
    algorithm, settings = CASES[name]
    settings = {"base": "GRPO"} | settings
    base = settings.pop("base")
    norms, moved = farthest(
        ours(path, records, algorithm), theirs(path, records, tmp_path, base, settings), path
    )
    assert norms < CLOSE
    assert moved < CLOSE


@pytest.mark.parametrize("beta", [0.0, 0.05])
def test_rloo_takes_the_same_steps(beta, path, records, tmp_path) -> None:
    algorithm = replace(
        GRPO,
        loss=GrpoSettings(ratio="SequenceProduct", aggregation="SequenceMean"),
        advantage_scale="None",
        advantage_baseline="LeaveOneOut",
        reward_kl=RewardKl(coefficient=beta, estimator="K1") if beta else None,
    )
    found = theirs(path, records, tmp_path, "RLOO", {"epsilon": 0.2, "beta": beta})
    norms, moved = farthest(ours(path, records, algorithm), found, path)
    assert norms < CLOSE
    assert moved < CLOSE


def test_a_slightly_different_clip_would_show(path, records) -> None:
    first = ours(path, records, GRPO)
    other = ours(path, records, replace(GRPO, loss=GrpoSettings(surrogate=Clipped(high=0.27))))
    norms, moved = farthest(first, other, path)
    assert norms > 1e-4
    assert moved > 1e-4

"""Looks at the model and the data of one run and says what it found; reads standard input, ends.

A process of its own because it may build a model with torch, and whoever asks shall not load that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rollout.common.parent_death import collect_from_here, die_with_parent
from rollout.common.stacks import show_threads_on_signal
from rollout.data.batch import open_batch
from rollout.data.build import build_source
from rollout.data.lengths import left_out_of, limit_training
from rollout.data.subset import bad_records, find_overlap
from rollout.entrypoints.row_lengths import check_pooled, measure_rows
from rollout.environments.build import build_environment
from rollout.environments.prompts import is_measured, measure_prompts
from rollout.environments.with_tools import tools_of
from rollout.errors import RolloutError, SpecError
from rollout.evaluations.build import build_suite, new_tokens_of
from rollout.models.experts.families import find_experts, refuse_adapters_of_experts
from rollout.models.files import ModelFiles, check_model, digest_model
from rollout.models.pooled import RUN_TASKS
from rollout.models.resolve import resolve_model
from rollout.models.roles import (
    CRITIC,
    INITIAL,
    TEACHER,
    FurtherModel,
    further_models,
    judge_role,
    reward_role,
)
from rollout.models.scoring import is_scorer, read_config, require_head
from rollout.models.shapes import read_shape
from rollout.models.teachers import check_teacher
from rollout.plugins.guard import drop_rights
from rollout.plugins.sidecar.named import plugin_digests, tracker_digests
from rollout.plugins.user_code import find_file
from rollout.rendering import build_renderer
from rollout.rendering.stops import require_stops
from rollout.rewards.build import build_reward_source, build_rewards
from rollout.rewards.source import RewardSource
from rollout.rewards.trial import load_once, without_credentials
from rollout.runs.resolve import (
    ModelFacts,
    Resolution,
    ResolveAnswer,
    ResolveRequest,
    keep_answers_apart,
    main_answer,
)
from rollout.seams import DataSource, EnvBuilder, Renderer
from rollout.tools.sources import know_servers, tool_digests
from rollout_api.v1alpha1.inference.infer import Infer
from rollout_api.v1alpha1.inference.sampling import Sampling
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.training.train import Train

MEASURED_ROWS_MAX = 100_000
"""Larger data is not rendered whole at plan time: its longest prompt is what the context leaves."""


def main() -> None:
    """Answer one request."""
    answers = keep_answers_apart()
    collect_from_here()
    show_threads_on_signal()
    die_with_parent()
    drop_rights()
    try:
        request = msgspec.json.decode(sys.stdin.buffer.read(), type=ResolveRequest)
        answer = ResolveAnswer(resolution=resolve(request))
    except RolloutError as error:
        answer = ResolveAnswer(error=type(error).__name__, message=str(error))
    main_answer(answers, answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """Rows of one role (``train``, or an evaluation) and the environment that asks them.

    ``left_out``: positions of rows that were too long, in the data before they were.
    """

    role: str
    source: DataSource
    environment: EnvBuilder
    left_out: tuple[int, ...] = ()


def resolve(request: ResolveRequest) -> Resolution:
    """What only a look can tell. Raises SpecError, DataError or StoreError."""
    spec = RolloutRunSpec.model_validate(request.spec)
    know_servers(request.server_tools, spec.train, code_folders(spec))
    known = request.known
    if known is None:
        facts, renderer = _look_at_models(spec, request)
    else:
        facts, renderer = known, build_renderer(Path(known.model_path), spec.model.chat_template)
    folders = {role: Path(path) for role, path in facts.models.items()}
    folders[INITIAL] = Path(facts.model_path)
    if request.loads_rewards:
        load_once(_reward_sources(spec, folders), without_credentials(os.environ, spec))
    if spec.infer is not None:
        if spec.infer.task == "Generate":
            _room(spec, facts.context_length)
        return _resolve_batch(spec, spec.infer, facts, renderer)
    papers = [*_training(spec, folders, renderer), *_evaluations(spec, folders)]
    train = next((paper.source for paper in papers if paper.role == "train"), None)
    _check_held_out(spec, train, [paper for paper in papers if paper.role != "train"])
    room = _room(spec, facts.context_length)
    return Resolution(
        **msgspec.structs.asdict(facts),
        prompt_tokens_max=_prompt_tokens_max(spec, papers, renderer, room),
        data_digests={paper.role: paper.source.digest for paper in papers},
        tool_digests=_tools(papers),
        plugin_digests=plugin_digests(spec, code_folders(spec)),
        tracker_digests=tracker_digests(spec.tracking, code_folders(spec)),
        num_rows=None if train is None else len(train),
        left_out=tuple(row for paper in papers for row in paper.left_out),
        num_bad=0 if train is None else bad_records(train).num_records,
        first_bad="" if train is None else "; ".join(map(str, bad_records(train).first[:3])),
    )


def _tools(papers: Sequence[Paper]) -> dict[str, str]:
    """What the policy sees of its tools in training."""
    trained = (paper.environment for paper in papers if paper.role == "train")
    return {name: one for made in trained for name, one in tool_digests(tools_of(made)).items()}


def _served(spec: RolloutRunSpec, context: int) -> int:
    """Tokens of a prompt and its answer: the model's context, or less where the engine is given less."""
    vllm = spec.actors.chosen_engine.vllm
    own = None if vllm is None else vllm.max_model_length
    return context if own is None else min(own, context)


def _resolve_batch(
    spec: RolloutRunSpec, infer: Infer, facts: ModelFacts, renderer: Renderer
) -> Resolution:
    """The same of an inference run: each row is rendered, and one that does not fit is left out."""
    source = open_batch(infer)
    left_out, longest = measure_rows(source, infer, renderer, _served(spec, facts.context_length))
    bad = len(source.refused) + len(left_out)
    return Resolution(
        **msgspec.structs.asdict(facts),
        prompt_tokens_max=longest,
        data_digests={"infer": source.digest},
        num_rows=source.num_rows,
        left_out=left_out,
        num_bad=bad,
        first_bad="; ".join(f"{one.where}: {one.message}" for one in source.refused[:3]),
    )


def look_at_models(request: ResolveRequest) -> ModelFacts:
    """The part of a look that runs none of the author's code. Raises SpecError or StoreError."""
    return _look_at_models(RolloutRunSpec.model_validate(request.spec), request)[0]


def _look_at_models(spec: RolloutRunSpec, request: ResolveRequest) -> tuple[ModelFacts, Renderer]:
    model = _model(spec, request)
    experts = find_experts(spec, model)
    refuse_adapters_of_experts(spec, model)
    shape = read_shape(model.path)
    renderer = build_renderer(model.path, spec.model.chat_template)
    if spec.infer is not None and spec.infer.task != "Generate":
        check_pooled(model.path, RUN_TASKS[spec.infer.task])
    further = {one.role: _further(one, request) for one in further_models(spec)}
    _check_further(model.path, {role: files.path for role, files in further.items()})
    work = spec.train or spec.infer
    if work is not None:
        sampling = work.sampling
        require_stops(sampling.stop, sampling.stop_token_ids, renderer.tokenizer, shape.vocab)
    facts = ModelFacts(
        model_path=str(model.path),
        model_digest=model.digest,
        model_revision=model.revision,
        num_parameters=shape.num_parameters,
        context_length=shape.context,
        stop_token_ids=tuple(renderer.stop_token_ids),
        pad_token_id=renderer.pad_token_id,
        models={role: str(files.path) for role, files in further.items()},
        model_digests={role: files.digest for role, files in further.items()},
        model_revisions={role: one.revision for role, one in further.items() if one.revision},
        experts=experts,
    )
    return facts, renderer


def _room(spec: RolloutRunSpec, context: int) -> int:
    """Tokens that the context leaves to a prompt. Raises SpecError when there are none."""
    served = _served(spec, context)
    room = served - max_new_tokens(spec)
    if room < 1:
        whose = "the model's context" if served == context else "actors.engine.vllm.maxModelLength"
        raise SpecError(
            f"{_field_of_length(spec)} is {max_new_tokens(spec)}, but {whose} holds "
            f"{served} tokens in all; lower it"
        )
    return room


def _field_of_length(spec: RolloutRunSpec) -> str:
    if spec.evaluate is not None:
        return "evaluations[].maxNewTokens"
    return f"{spec.chosen}.sampling.maxNewTokens"


def _check_further(policy: Path, folders: Mapping[str, Path]) -> None:
    """Raise SpecError for a teacher of other tokens, and for a model that lacks the head it must have."""
    for role, folder in folders.items():
        if role.startswith(judge_role("")) and is_scorer(read_config(folder)):
            raise SpecError(
                f"{role}: a reward model gives a number and says nothing; name it as model, not under judge"
            )
    if TEACHER in folders:
        check_teacher(policy, folders[TEACHER])
    for role, folder in folders.items():
        if role.startswith(reward_role("")) or (role == CRITIC and is_scorer(read_config(folder))):
            require_head(folder)


def _model(spec: RolloutRunSpec, request: ResolveRequest) -> ModelFiles:
    if request.model_path is not None:
        return _folder(Path(request.model_path))
    if spec.model.uri is None:
        raise SpecError("spec.model.fromRun: the run it names has not produced its model yet")
    return resolve_model(spec.model.uri, revision=spec.model.revision, offline=request.offline)


def _further(model: FurtherModel, request: ResolveRequest) -> ModelFiles:
    if model.role in request.models:
        return _folder(Path(request.models[model.role]))
    source = model.source
    if source.uri is None:
        raise SpecError(f"{model.field}.fromRun: the run it names has not produced its model yet")
    return resolve_model(source.uri, revision=source.revision, offline=request.offline)


def _folder(path: Path) -> ModelFiles:
    check_model(path, str(path))
    return ModelFiles(uri=path.as_uri(), path=path, digest=digest_model(path))


def code_folders(spec: RolloutRunSpec) -> tuple[Path, ...]:
    """Where the user's own modules lie."""
    path = None if spec.code is None else spec.code.path
    return () if path is None else (Path(path),)


def _training(
    spec: RolloutRunSpec, models: Mapping[str, Path], renderer: Renderer
) -> Iterator[Paper]:
    train = spec.train
    if train is None:
        return
    environment = build_environment(train.environment, folders=code_folders(spec))
    _check_rewards(train, code_folders(spec), models)
    _check_objective(train)
    target = train.algorithm.traits.row
    source = build_source(
        train.data, environment, seed=spec.seed, target=target, folders=code_folders(spec)
    )
    limited = limit_training(source, train, renderer, tools_of(environment))
    yield Paper(
        role="train",
        source=limited,
        environment=environment,
        left_out=() if limited is source else left_out_of(limited, len(source)),
    )


def _check_rewards(train: Train, folders: Sequence[Path], models: Mapping[str, Path]) -> None:
    """Raise SpecError for a reward that cannot be; user code itself is not run in this process."""
    build_rewards(train.rewards, folders=folders, models=models)
    for reward in train.rewards:
        if reward.python is not None and reward.python.path is not None:
            find_file(reward.python.path, folders)


def _reward_sources(spec: RolloutRunSpec, models: Mapping[str, Path]) -> Iterator[RewardSource]:
    """The user's own rewards, of training and of evaluations."""
    train, folders = spec.train, code_folders(spec)
    for reward in () if train is None else train.rewards:
        if reward.python is not None or reward.plugin is not None:
            yield build_reward_source(reward, folders=folders)
    for index, item in enumerate(spec.evaluations):
        if (
            item.suite.python
            or item.suite.plugin
            or any(one.python or one.plugin for one in item.suite.rewards)
        ):
            suite = build_suite(
                item, index, train=train, seed=spec.seed, folders=folders, models=models
            )
            yield from (one for one in suite.rewards if one.function)


def _check_objective(train: Train) -> None:
    """Raise SpecError for an objective of the user's that is not installed or refuses its parameters."""
    grpo = train.algorithm.grpo
    if grpo is not None and grpo.surrogate.custom is not None:
        from rollout.learner.config.surrogates import build_surrogate

        build_surrogate(grpo)


def _evaluations(spec: RolloutRunSpec, models: Mapping[str, Path]) -> Iterator[Paper]:
    for index, evaluation in enumerate(spec.evaluations):
        suite = build_suite(
            evaluation,
            index,
            train=spec.train,
            seed=spec.seed,
            folders=code_folders(spec),
            models=models,
        )
        yield Paper(role=suite.name, source=suite.source(), environment=suite.environment())


def _check_held_out(spec: RolloutRunSpec, train: DataSource | None, asked: Sequence[Paper]) -> None:
    """Raise SpecError for an evaluation whose prompts are trained on: it would measure memory.

    Of data that rollout holds out itself, and of larger data than is looked through, nothing is asked.
    """
    data = spec.train.data if spec.train else None
    if data is None or train is None or len(train) > MEASURED_ROWS_MAX:
        return
    for paper in asked:
        found = find_overlap(train, paper.source)
        if found.num_rows:
            raise SpecError(
                f"spec.evaluations: {found.num_rows} of {found.num_eval} prompts of {paper.role!r} are in"
                f" the training data as well, such as {found.examples[0]!r:.60}; remove them from"
                " train.data, or hold rows out with data.evalFraction"
            )


def max_new_tokens(spec: RolloutRunSpec) -> int:
    """Longest completion anything in the run may sample."""
    train, infer = spec.train, spec.infer
    wanted = [train.sampling.max_new_tokens if train and train.algorithm.is_online else None]
    wanted += [infer.sampling.new_tokens_max if infer else None]
    otherwise = None if spec.evaluate is None else Sampling().new_tokens_max
    wanted += [new_tokens_of(one) or otherwise for one in spec.evaluations]
    return max((tokens for tokens in wanted if tokens is not None), default=0)


def _prompt_tokens_max(
    spec: RolloutRunSpec, papers: Sequence[Paper], renderer: Renderer, room: int
) -> int:
    """The longest prompt that is sampled from, in tokens.

    Raises SpecError when one leaves no room to answer.
    """
    online = spec.train is not None and spec.train.algorithm.is_online
    asked = [paper for paper in papers if online or paper.role != "train"]
    if spec.train is not None and spec.train.max_prompt_tokens is not None:
        return min(spec.train.max_prompt_tokens, room)
    measured = [is_measured(one.source, one.environment, MEASURED_ROWS_MAX) for one in asked]
    if not asked or not all(measured):
        return room
    lengths = [measure_prompts(one.role, one.source, one.environment, renderer) for one in asked]
    longest = max(max(each, default=1) for each in lengths)
    if longest > room:
        raise SpecError(
            f"the longest prompt has {longest} tokens, but the model's context leaves {room} beside "
            f"{max_new_tokens(spec)} new ones; set train.maxPromptTokens, lower "
            "train.sampling.maxNewTokens, or take a model with a longer context"
        )
    return longest


if __name__ == "__main__":
    main()

"""Looks at the model and the data of one run and says what it found; reads standard input, ends.

A process of its own because it may build a model with torch, and whoever asks shall not load that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rollout.data.build import build_source
from rollout.environments.build import build_environment
from rollout.errors import RolloutError, SpecError
from rollout.lifeline import die_with_parent
from rollout.local.plan import needs_actors
from rollout.local.resolve import Resolution, ResolveAnswer, ResolveRequest, main_answer
from rollout.models.files import ModelFiles, check_model, digest_model
from rollout.models.resolve import resolve_model
from rollout.models.shapes import read_shape
from rollout.rendering import build_renderer
from rollout.seams import DataSource, EnvBuilder, Renderer
from rollout_api.v1alpha1.run import RolloutRunSpec

MEASURED_ROWS_MAX = 100_000
"""Larger data is not rendered whole at plan time: its longest prompt is what the context leaves."""
ROWS_AT_ONCE = 1024


def main() -> None:
    """Answer one request."""
    die_with_parent()
    try:
        request = msgspec.json.decode(sys.stdin.buffer.read(), type=ResolveRequest)
        answer = ResolveAnswer(resolution=resolve(request))
    except RolloutError as error:
        answer = ResolveAnswer(error=type(error).__name__, message=str(error))
    main_answer(answer)


def resolve(request: ResolveRequest) -> Resolution:
    """What only a look can tell. Raises SpecError, DataError or StoreError."""
    spec = RolloutRunSpec.model_validate(request.spec)
    model = _model(spec, request)
    shape = read_shape(model.path)
    renderer = build_renderer(model.path, spec.model.chat_template)
    environment = build_environment(
        None if spec.train is None else spec.train.environment, folders=code_folders(spec)
    )
    source = None if spec.train is None else _training_data(spec, environment)
    room = shape.context - max_new_tokens(spec)
    if room < 1:
        raise SpecError(
            f"train.sampling.maxNewTokens is {max_new_tokens(spec)}, but the model's context holds "
            f"{shape.context} tokens in all; lower it"
        )
    return Resolution(
        model_path=str(model.path),
        model_digest=model.digest,
        model_revision=model.revision,
        num_parameters=shape.num_parameters,
        context_length=shape.context,
        stop_token_ids=tuple(renderer.stop_token_ids),
        prompt_tokens_max=_prompt_tokens_max(spec, environment, source, renderer, room),
        data_digests={} if source is None else {"train": source.digest},
        num_rows=None if source is None else len(source),
        num_bad=getattr(getattr(source, "bad", None), "num_records", 0),
    )


def _model(spec: RolloutRunSpec, request: ResolveRequest) -> ModelFiles:
    if request.model_path is not None:
        path = Path(request.model_path)
        check_model(path, str(path))
        return ModelFiles(uri=path.as_uri(), path=path, digest=digest_model(path))
    if spec.model.uri is None:
        raise SpecError("spec.model.fromRun: the run it names has not produced its model yet")
    return resolve_model(spec.model.uri, revision=spec.model.revision, offline=request.offline)


def code_folders(spec: RolloutRunSpec) -> tuple[Path, ...]:
    """Where the user's own modules lie."""
    path = getattr(spec.code, "path", None)
    return (Path(path),) if isinstance(path, str) else ()


def _training_data(spec: RolloutRunSpec, environment: EnvBuilder) -> DataSource:
    assert spec.train is not None
    offline = not spec.train.algorithm.is_online
    return build_source(
        spec.train.data,
        None if offline else environment,
        seed=spec.seed,
        answer_required=offline,
    )


def max_new_tokens(spec: RolloutRunSpec) -> int:
    """Longest completion anything in the run may sample."""
    train, infer = spec.train, spec.infer
    wanted = [train.sampling.max_new_tokens if train and train.algorithm.is_online else None]
    wanted += [infer.sampling.max_new_tokens if infer else None]
    wanted += [evaluation.max_new_tokens for evaluation in spec.evaluations]
    return max((tokens for tokens in wanted if tokens is not None), default=0)


def _prompt_tokens_max(
    spec: RolloutRunSpec,
    environment: EnvBuilder,
    source: DataSource | None,
    renderer: Renderer,
    room: int,
) -> int:
    """The longest prompt, in tokens. Raises SpecError when a prompt leaves no room to answer."""
    if spec.train is None or source is None or not needs_actors(spec):
        return room
    if spec.train.max_prompt_tokens is not None:
        return min(spec.train.max_prompt_tokens, room)
    if len(source) > MEASURED_ROWS_MAX:
        return room
    longest = max(_prompt_lengths(environment, source, renderer), default=1)
    if longest > room:
        raise SpecError(
            f"the longest prompt has {longest} tokens, but the model's context leaves {room} beside "
            f"{max_new_tokens(spec)} new ones; set train.maxPromptTokens, lower "
            "train.sampling.maxNewTokens, or take a model with a longer context"
        )
    return longest


def _prompt_lengths(
    environment: EnvBuilder, source: DataSource, renderer: Renderer
) -> Iterator[int]:
    for start in range(0, len(source), ROWS_AT_ONCE):
        for row in source.rows(range(start, min(start + ROWS_AT_ONCE, len(source)))):
            yield len(renderer.render_prompt(environment.build(row).start()))


if __name__ == "__main__":
    main()

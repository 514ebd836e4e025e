"""What the other processes of a run do with it: engines, prompts, rewards, trackers, stores, models, processes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import msgspec
from configs import Place, build_config
from pytest import MonkeyPatch

from rollout.actor.task_scoring import build_task_scoring
from rollout.common.restarts import ProcessEnd, plan_restart
from rollout.coordinator.batch_run import BATCH, build_batch_plan, build_batch_rows
from rollout.coordinator.build import build_plan
from rollout.coordinator.duties.batch_results import build_results_writer
from rollout.coordinator.duties.result_files import write_result
from rollout.coordinator.rows import build_rows
from rollout.coordinator.rules.evaluation import build_evaluation
from rollout.data.build import open_source
from rollout.data.rows.mapping import row_messages
from rollout.data.rows.requests import row_sampling
from rollout.engines.registry import build_engine
from rollout.engines.sizes import plan_tasks_max
from rollout.engines.stops import StopTexts
from rollout.engines.vllm.command import build_command
from rollout.engines.vllm.wire import build_generate_body
from rollout.entrypoints import learner
from rollout.entrypoints.resolve import code_folders
from rollout.entrypoints.resolve import resolve as look
from rollout.environments.agents.build import build_agent
from rollout.errors import RolloutError
from rollout.events.build import open_event_trackers
from rollout.events.cloud_events import EventSource
from rollout.ledger.views import SampleView
from rollout.models.roles import further_models
from rollout.objects.opening import open_store
from rollout.objects.remote import RemoteStore
from rollout.plugins.sidecar.kinds.tracker import PluginTracker
from rollout.plugins.sidecar.manifest import Kind
from rollout.plugins.sidecar.named import open_plugin, parameters_of
from rollout.rendering import build_renderer
from rollout.rendering.stops import reply_text
from rollout.rewards.calls import InPlace, SourceCalls
from rollout.rewards.frames import RewardAnswer
from rollout.rewards.host import RewardHost
from rollout.runs.manifest import Document
from rollout.runs.pipeline import find_output
from rollout.runs.plan.build import _accelerator_bytes
from rollout.runs.resolve import ResolveRequest
from rollout.runs.run_dir import RunDir
from rollout.runs.wheels import place_wheel
from rollout.runs.worker_config import choose_dtype
from rollout.service.settings import settings_of_spec
from rollout.supervisor.processes import Machine, plan_bounds, plan_processes
from rollout.supervisor.watch import LastMove, check_bounds, find_stuck
from rollout.tools.mcp.source import McpSource
from rollout.tools.sources import build_sources
from rollout.tracking.build import build_trackers
from rollout.types import Completion, GenerateRequest, Message, SamplingParams, Trajectory
from rollout_api import parse_run, resolve
from rollout_api.checks import check_spec
from rollout_api.checks.environment.plugins import find_plugins
from rollout_api.checks.facts import Facts, ModelFacts
from rollout_api.v1alpha1.run import RolloutRunSpec

MACHINE = Machine(cpus=8)
LARGE = ModelFacts(
    num_parameters=7_000_000_000,
    hidden_size=4096,
    num_layers=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=32_000,
    context_length=4096,
)


def observe_engine(document: Mapping[str, Any], place: Place) -> Any:
    """The server's command and variables, or the embedded engine's batches; and what an actor claims at once."""
    config = build_config(document, place)
    engine = build_engine(config, "actor-0")
    claims = plan_tasks_max(config)
    settings = getattr(engine, "settings", None) or getattr(engine, "_settings", None)
    if config.resolved.engine == "vllm":
        return build_command(settings, Path("/s")), settings.start_seconds_max, claims
    requests = [
        GenerateRequest(
            prompt_ids=(1,) * n, seeds=(1, 2, 3, 4), sampling=SamplingParams(max_new_tokens=4)
        )
        for n in range(1, 9)
    ]
    plans = engine._plan(SimpleNamespace(takes_ragged_prompts=True), requests)
    batches = [list(one.indices) for one in plans]
    return batches, engine._groups_max, engine._exact, str(engine._dtype), claims


def observe_prompts(document: Mapping[str, Any], place: Place) -> Any:
    """The tokens of the first prompts in the order in which they are asked, or what each row came to."""
    config = build_config(document, place)
    rows = build_rows(config)
    plan = build_plan(config, rows)
    renderer = build_renderer(place.model, config.spec.model.chat_template)
    judges = build_task_scoring(config)
    ordinals = range(min(6, plan.train.tasks_total or 6))
    first = [dict(row) for row in rows.train(list(ordinals))]
    asked = [
        [
            renderer.render_prompt(asyncio.run(environment.build(row).start()).messages)
            for row in first
        ]
        for environment in judges.environments.values()
    ]
    suites = {key: [dict(row) for row in source.rows([0])] for key, source in rows.suites.items()}
    held = None if rows.held_out is None else len(rows.held_out)
    trained = [renderer.render_training(_messages(row)) for row in first if "messages" in row]
    return (
        asked,
        first,
        len(rows.source),
        suites,
        held,
        plan.train.tasks_total,
        plan.train.steps_total,
        trained,
    )


def observe_export(document: Mapping[str, Any], place: Place) -> Any:
    """Where the model of a run that has ended well goes."""
    return find_output(build_config(document, place).spec)


def observe_service(document: Mapping[str, Any], place: Place) -> Any:
    """What a training service is told when it starts."""
    spec = RolloutRunSpec.model_validate(document["spec"])
    return settings_of_spec(spec, place.folder, place.folder)


def observe_batch(document: Mapping[str, Any], place: Place) -> Any:
    """What an inference run asks, how, and what it writes of an answer."""
    config = build_config(document, place)
    rows = build_batch_rows(config)
    plan = build_batch_plan(config, rows)
    writer = build_results_writer(config, rows)
    renderer = build_renderer(place.model, config.spec.model.chat_template)
    asked = rows.evaluation(*BATCH, range(len(rows.asked)))
    answer = Trajectory(
        ordinal=0,
        sample=0,
        prompt_ids=(1,),
        token_ids=(1, 2),
        actor_logprobs=(-1.0, -2.0),
        loss_mask=(1, 1),
        spans=(),
        rewards={},
        reward=0.0,
        ending="stop",
        text="AACAPw==",  # also a vector of one number
    )
    view = SampleView(
        task_id="a",
        trajectory_id="blake3:0",
        sample=0,
        reward=0.0,
        num_tokens=2,
        ending="stop",
        place=None,
        trajectory=answer,
    )
    return (
        [renderer.render_prompt(row_messages(row)) for row in asked],
        [row_sampling(row, plan.evaluations[0].sampling) for row in asked],
        build_evaluation(plan.evaluations[0], 0, 0),
        plan.infer,
        str(writer.folder / writer.results),
        [write_result(row, 0, [view], logprobs=writer.logprobs) for row in asked[:1]],
    )


def _messages(row: Mapping[str, Any]) -> list[Any]:
    return [
        one if isinstance(one, Message) else Message(role=one["role"], content=one["content"])
        for one in row["messages"]
    ]


def observe_scores(document: Mapping[str, Any], place: Place) -> Any:
    """The rewards of the same answers; sources with a process of their own are called as that process would."""
    judges = build_task_scoring(build_config(document, place))
    answers = [
        Completion(token_ids=(1, 2), logprobs=(0.0, 0.0), finish="stop", text=text)
        for text in ("4", " 4", "5")
    ]
    rows = [{"prompt": "2+2=", "answer": "4", "note": "5"}] * len(answers)
    found = {}
    for key, pipeline in judges.pipelines.items():
        pipeline._calls = [SourceCalls(source, opens=InPlace) for source in pipeline.sources]
        found[key] = pipeline.score([()] * len(answers), answers, rows)
    return found


def observe_sources(document: Mapping[str, Any], place: Place) -> Any:
    """Every source of reward as it would be asked."""
    judges = build_task_scoring(build_config(document, place))
    return {key: pipeline.sources for key, pipeline in judges.pipelines.items()}


def observe_look(document: Mapping[str, Any], place: Place) -> Any:
    """What is looked for, and found, before a run starts: models on the hub or here, data, lengths of prompts."""
    spec = resolve(parse_run(document).spec).spec
    asked: list[Any] = []

    def snapshot(repo: str, *, revision: str | None, **_: Any) -> str:
        asked.append((repo, revision))
        return str(place.scorer if repo.endswith("judge") else place.model)

    request = ResolveRequest(spec=spec.model_dump(mode="json", exclude_none=True))
    with patch("huggingface_hub.snapshot_download", snapshot):
        found = msgspec.structs.asdict(look(request))
    return (
        asked,
        found,
        [one.role for one in further_models(spec)],
        choose_dtype(spec, accelerated=True),
    )


def observe_reach(document: Mapping[str, Any], place: Place) -> Any:
    """What would be run for servers of tools and agents, which nothing is, and which hosts the policy is told of."""
    del place
    spec = resolve(parse_run(document).spec).spec
    assert spec.train is not None
    assert spec.train.environment is not None
    environment = spec.train.environment
    if environment.agent is not None:
        return build_agent(environment.agent, code_folders(spec)).program
    contained = [one for one in environment.tool_plugins if one.container is not None]
    given = environment.mcp_servers, environment.http, contained
    found = build_sources((), code_folders(spec), *given)
    return [one.program if isinstance(one, McpSource) else one.specs for one in found]


def _kind_of(field: str) -> Kind:
    if "toolPlugins" in field:
        return "tool"
    if field.endswith("data.plugin"):
        return "data"
    if field.endswith("suite.plugin"):
        return "evaluation"
    return "environment" if "environment" in field else "reward"


def observe_plugins(document: Mapping[str, Any], place: Place) -> Any:
    """The folder of each plugin, what it is configured with, and which rows are asked of those that have some."""
    del place
    spec = resolve(parse_run(document).spec).spec
    opened = [
        (
            open_plugin(
                one,
                _kind_of(field),
                code_folders(spec),
                field,
            ),
            parameters_of(one),
        )
        for field, one in find_plugins(spec)
    ]
    configured = [(plugin.folder.name, plugin.configure(given)) for plugin, given in opened]
    return configured, _asked_rows(spec)


def _asked_rows(spec: RolloutRunSpec) -> list[Any]:
    data = [None if spec.train is None else spec.train.data]
    data += [one.suite.data for one in spec.evaluations]
    calls: list[Any] = []
    with patch(
        "rollout.plugins.sidecar.kinds.data.open_rows", lambda _, *asked: calls.append(asked)
    ):
        for one in data:
            if one is not None and one.plugin is not None:
                open_source(one, folders=code_folders(spec))
    return calls


def observe_trackers(document: Mapping[str, Any], place: Place) -> Any:
    """With what the trackers' own libraries are called."""
    config = build_config(document, place)
    with _recorded() as (calls, client):
        made = build_trackers(
            config.spec.tracking,
            place.folder / "tracking",
            name="run",
            uid="uid",
            config={},
            folders=code_folders(config.spec),
        )
    told = open_event_trackers(
        config.spec.tracking, place.folder / "tracking", EventSource(uid="uid", name="run")
    )
    for one in (*made, *told):
        one.close()
    return (
        [type(one).__name__ for one in made],
        [one.target for one in told],
        [one._client._parameters for one in made if isinstance(one, PluginTracker)],
        calls,
        [str(call) for call in client.mock_calls if "MagicMock" not in str(call)],
    )


@contextmanager
def _recorded() -> Iterator[tuple[list[Any], MagicMock]]:
    """Stand-ins for wandb and mlflow that remember how they were opened."""
    calls: list[Any] = []

    def remember(name: str) -> Any:
        def called(*args: Any, **options: Any) -> Any:
            plain = {key: str(value) for key, value in options.items() if key != "settings"}
            calls.append((name, [str(one) for one in args if isinstance(one, str)], plain))
            return MagicMock()

        return called

    wandb = ModuleType("wandb")
    wandb.__dict__.update(
        Settings=lambda **_: None, init=remember("init"), errors=SimpleNamespace(Error=ValueError)
    )
    # This one name alone is put back: what is imported meanwhile stays, or it would be there twice.
    with MonkeyPatch.context() as stood_in, patch("mlflow.tracking.MlflowClient") as client:
        stood_in.setitem(sys.modules, "wandb", wandb)
        yield calls, client


def observe_store(document: Mapping[str, Any], place: Place) -> Any:
    """Which objects' store the coordinator opens: its place, its client, the key of what is written, the size of its cache."""
    store = open_store(build_config(document, place), "coordinator")
    if not isinstance(store, RemoteStore):
        return type(store).__name__, str(vars(store).get("root") or vars(store).get("_root"))
    remote: Any = store._remote
    client = remote._client.meta
    reached = client.region_name, client.endpoint_url, remote._bucket.kms_key
    return remote.place, *reached, store._cache._size_bytes_max


def observe_code(document: Mapping[str, Any], place: Place) -> Any:
    """What becomes of the user's wheel in a pod: unpacked, or refused."""
    code = parse_run(document).spec.code
    assert code is not None and code.wheel is not None
    uri = code.wheel.uri.replace("file:///place", place.folder.as_uri())
    wheel = code.wheel.model_copy(update={"uri": uri})
    return place_wheel(wheel, place.folder / "run" / "unpacked", None)


def observe_processes(document: Mapping[str, Any], place: Place) -> Any:
    """The processes of a run on this machine, how often each comes back, and when its time is over."""
    spec = resolve(parse_run(document).spec).spec
    processes = plan_processes(spec, RunDir(path=place.folder / "run"), MACHINE)
    bounds = plan_bounds(spec)
    ends = [
        check_bounds(None, started_at=0.0, now=now, bounds=bounds) is not None
        for now in (100.0, 1000.0, 1850.0, 4000.0)
    ]
    progress = LastMove(mark=(), at=0.0)
    worker = SimpleNamespace(worker="actor-0", outcome=None, heartbeat_age_seconds=1.0)
    status: Any = SimpleNamespace(workers=(worker,), waiting=())
    stuck = [find_stuck(status, progress, now, bounds) for now in (500.0, 1000.0)]
    crashes = [ProcessEnd(code=1, started_at=float(n), ended_at=float(n)) for n in range(12)]
    again = [plan_restart("actor-0", crashes[:n], processes[0].restart) for n in (1, 5, 10, 11, 12)]
    return (
        [(one.name, one.module, one.arguments, dict(one.env)) for one in processes],
        ends,
        stuck,
        str(again),
    )


def observe_hub(document: Mapping[str, Any], place: Place) -> Any:
    """With what ``datasets`` is called."""
    calls: list[Any] = []

    def load(*args: Any, **options: Any) -> Any:
        calls.append((args, sorted(options.items())))
        raise ValueError("there is no hub here")

    config = build_config(document, place)
    build = build_rows if config.spec.infer is None else build_batch_rows
    with patch("datasets.load_dataset", load), suppress(RolloutError):
        build(config)
    return calls


def observe_patience(document: Mapping[str, Any], place: Place) -> Any:
    """The deadline that the first source's process is given for one batch, on a clock that stands still."""
    judges = build_task_scoring(build_config(document, place))
    deadlines: list[float] = []

    def asked(_: Any, __: Any, ___: Any, deadline: float, ____: Any) -> RewardAnswer:
        deadlines.append(deadline)
        return RewardAnswer(values=[])

    host = patch.multiple(RewardHost, _started=lambda _: None, _ask=asked)
    with host, patch("rollout.rewards.host.time.monotonic", lambda: 0.0):
        for pipeline in judges.pipelines.values():
            for source in pipeline.sources:
                RewardHost(source).score((), (), ())
    return deadlines


class _Joined(Exception):  # noqa: N818 - the learner's start stops here
    """With what the ranks would have joined."""


def observe_ranks(document: Mapping[str, Any], place: Place) -> Any:
    """How the ranks of this run join: whether they shard, and what is gathered again."""
    config = build_config(document, place)

    def join(**options: Any) -> Any:
        raise _Joined(sorted(options.items()))

    start = patch.multiple(
        "rollout.entrypoints.learner",
        parse_arguments=lambda _: SimpleNamespace(config=""),
        begin_as=lambda *_: config,
        _heed_signals=lambda *_: None,
        apply_numerics=lambda **_: None,
        keep_freed_memory=lambda: None,
        join=join,
    )
    try:
        with start:
            learner.main()
    except _Joined as joined:
        return joined.args
    raise AssertionError("the learner's start joins no ranks")


def observe_memory(document: Mapping[str, Any], runtime: Mapping[str, Any]) -> Any:
    """What a plan says of a model of 20 billion parameters beside the runtime's device classes."""
    spec = resolve(parse_run(document).spec, engine="vllm").spec
    runtimes = [Document(source="runtime.yaml", data={"spec": runtime}, lines={})]
    facts = Facts(model=LARGE, accelerator_bytes=_accelerator_bytes(runtimes))
    return [(one.field, one.reason) for one in check_spec(spec, facts)]


def observe_completions(document: Mapping[str, Any], place: Place) -> Any:
    """Where the same tokens end, the text that rewards see of them, and the body that asks a vLLM server."""
    config = build_config(document, place)
    sampling = build_plan(config, build_rows(config)).train.sampling
    renderer = build_renderer(place.model, config.spec.model.chat_template)
    tokens = renderer.render_prompt((Message(role="user", content="1#2;3"),))
    said = Completion(token_ids=tokens, logprobs=(0.0,) * len(tokens), finish="length")
    request = GenerateRequest(prompt_ids=(1,), seeds=(1,), sampling=sampling)
    texts = StopTexts(place.model)
    ended = texts.cut(said, request)
    body = build_generate_body(request, 1, tokenizer=texts.file)
    return ended.token_ids, reply_text(ended.token_ids, sampling, renderer), str(body)

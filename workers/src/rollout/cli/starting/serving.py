"""``rollout infer serve``: models or runs behind OpenAI's API on this machine, until Ctrl-C."""

from __future__ import annotations

import shlex
import signal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout.cli.outcomes import print_fact
from rollout.cli.output import (
    OutputFormat,
    OutputOption,
    print_json,
    print_line,
    print_note,
)
from rollout.cli.starting.keys import KeysOption, keys_folder_of
from rollout.errors import SpecError

if TYPE_CHECKING:
    from rollout.serving.engines import EngineChoice
    from rollout.serving.session import ServeOptions, ServingAddress


EXAMPLES = {
    "generate": ("chat/completions", '"messages": [{"role": "user", "content": "Hello"}]'),
    "embed": ("embeddings", '"input": "Hello"'),
    "score": ("score", '"queries": "3+4=", "documents": ["7", "8"]'),
}
"""Path and fields of the first request that is printed."""


class ServingEngine(StrEnum):
    """What computes the answers."""

    embedded = "embedded"
    vllm = "vllm"
    sglang = "sglang"


class ServingTask(StrEnum):
    """What the models answer with."""

    auto = "auto"
    generate = "generate"
    embed = "embed"
    score = "score"


class ServingDevice(StrEnum):
    """What it computes on."""

    cpu = "cpu"
    cuda = "cuda"


ModelsArgument = Annotated[
    list[str],
    typer.Argument(
        help="hf://owner/name, a folder, rollout://..., or a run: RUN, RUN@12, RUN@best, RUN@live.",
        metavar="[NAME=]MODEL|RUN...",
    ),
]
EngineOption = Annotated[
    ServingEngine,
    typer.Option(
        "--engine",
        help="embedded for small models; vllm for the rest; sglang: unproven, of an environment of its own.",
    ),
]
TaskOption = Annotated[
    ServingTask,
    typer.Option("--task", help="Text, vectors or scores; auto: what each model is made for."),
]
HostOption = Annotated[str, typer.Option("--host", help="Address to listen at.")]
PortOption = Annotated[int, typer.Option("--port", min=0, max=65_535, help="0: any free one.")]
ReplicasOption = Annotated[
    int, typer.Option("--replicas", min=1, max=16, help="Engines for each model.")
]
ThreadsOption = Annotated[int, typer.Option("--threads", min=1, help="CPU threads of each engine.")]
DeviceOption = Annotated[
    ServingDevice, typer.Option("--device", help="Of a server; the embedded engine has the CPU.")
]
MaxNumSeqsOption = Annotated[
    int | None,
    typer.Option("--max-num-seqs", min=1, help="Sequences that an engine decodes together."),
]
MaxModelLengthOption = Annotated[
    int | None,
    typer.Option("--max-model-length", min=1, help="Of a server: longest prompt with completion."),
]
ToolCallParserOption = Annotated[
    str | None,
    typer.Option(
        "--tool-call-parser", help="Of a server: how the model writes calls, such as hermes."
    ),
]
VllmArgumentOption = Annotated[
    list[str] | None,
    typer.Option("--vllm-argument", help="NAME=VALUE or NAME of a flag that tunes vLLM."),
]
DrainSecondsOption = Annotated[
    float,
    typer.Option("--drain-seconds", min=0, help="How long open requests may take after Ctrl-C."),
]
LogRequestsOption = Annotated[
    bool, typer.Option("--log-requests", help="One line for each request, without bodies.")
]
LogBodiesOption = Annotated[
    bool, typer.Option("--log-bodies", help="--log-requests, with what was asked and answered.")
]
LogDaysOption = Annotated[
    int, typer.Option("--log-days", min=1, help="Older files of the request log are removed.")
]

TracesOption = Annotated[
    str | None,
    typer.Option(
        "--traces",
        metavar="URL",
        help="Trace requests to this OpenTelemetry collector: OTLP over HTTP.",
    ),
]
TracesShareOption = Annotated[
    float,
    typer.Option("--traces-share", help="Of --traces: share of requests that are traced, 0 to 1."),
]

FilesOption = Annotated[
    Path | None,
    typer.Option("--files", help="Folder of uploaded files and batches; default: none are kept."),
]


def serve(
    models: ModelsArgument,
    *,
    engine: EngineOption = ServingEngine.embedded,
    task: TaskOption = ServingTask.auto,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    replicas: ReplicasOption = 1,
    threads: ThreadsOption = 1,
    device: DeviceOption = ServingDevice.cpu,
    max_num_seqs: MaxNumSeqsOption = None,
    max_model_length: MaxModelLengthOption = None,
    tool_call_parser: ToolCallParserOption = None,
    vllm_argument: VllmArgumentOption = None,
    drain_seconds: DrainSecondsOption = 30.0,
    log_requests: LogRequestsOption = False,
    log_bodies: LogBodiesOption = False,
    log_days: LogDaysOption = 30,
    traces: TracesOption = None,
    traces_share: TracesShareOption = 1.0,
    files: FilesOption = None,
    keys_folder: KeysOption = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Serve models behind OpenAI's API until Ctrl-C, which lets open requests end."""
    from rollout.common.logs import configure_logging
    from rollout.serving.engines import EngineChoice
    from rollout.serving.session import ServeOptions
    from rollout.serving.targets import read_target

    configure_logging({"ROLLOUT_LOG_LEVEL": "WARNING"})
    folder = keys_folder_of(keys_folder)
    choice = EngineChoice(
        kind=engine.value,
        task=None if task is ServingTask.auto else task.value,
        replicas=replicas,
        threads=threads,
        device=device.value,
        max_num_seqs=max_num_seqs,
        max_model_length=max_model_length,
        tool_parser=tool_call_parser,
        vllm_arguments=tuple(f"--{one}" for one in vllm_argument or ()),
        traces=_collector(traces, traces_share),
    )
    _refuse_others_flags(choice)
    options = ServeOptions(
        targets=tuple(map(read_target, models)),
        engine=choice,
        host=host,
        port=port,
        keys=folder,
        logs=folder / "logs",
        drain_seconds=drain_seconds,
        log_requests=log_requests or log_bodies,
        log_bodies=log_bodies,
        log_days=log_days,
        traces_share=traces_share,
        files=files and files.absolute(),
    )
    _serve(options, output)


def _serve(options: ServeOptions, output: OutputFormat) -> None:
    from rollout.serving.session import ServingSession

    asked = _count_signals()
    with ServingSession(options) as session:
        print_note(f"starting; logs are in {options.logs}")
        _print_address(session.start(lambda: bool(asked)), output)
        session.run(lambda: bool(asked))
        print_note("open requests may end; Ctrl-C again cuts them")
        session.drain(lambda: len(asked) > 1)


def _count_signals() -> list[int]:
    """A list that grows with each SIGINT and SIGTERM."""
    asked: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _: asked.append(got))
    return asked


def _collector(url: str | None, share: float) -> str:
    """Where traces go, checked with what sends them, so that nothing starts that cannot; empty: nowhere."""
    if url is None:
        if share != 1:
            raise SpecError("--traces-share: says how many are traced: name a collector, --traces")
        return ""
    from rollout.inference.gateway.traces import parse_collector

    return parse_collector(url, share)


def _refuse_others_flags(choice: EngineChoice) -> None:
    from rollout.serving.engines import WAYS

    given = {
        "--device": choice.device != "cpu",
        "--max-model-length": choice.max_model_length is not None,
        "--tool-call-parser": choice.tool_parser is not None,
        "--vllm-argument": bool(choice.vllm_arguments),
    }
    own = WAYS[choice.kind].flags
    found = next((name for name, is_given in given.items() if is_given and name not in own), None)
    if found is not None:
        others = [name for name, way in WAYS.items() if found in way.flags]
        raise SpecError(
            f"{found} is not of the {choice.kind} engine: leave it out, or add --engine {' or '.join(others)}"
        )


def _print_address(address: ServingAddress, output: OutputFormat) -> None:
    if output is OutputFormat.json:
        print_json({"url": address.url, "key": address.key, "models": list(address.models)})
        return
    print_line(f"serving at {address.url}")
    print_fact("models", ", ".join(address.models))
    print_fact("key", f"{address.key} (ends with this command)")
    path, asked = EXAMPLES[address.task]
    body = f'{{"model": "{address.first}", {asked}}}'
    print_line(
        f"curl {address.url}/{path} -H 'Authorization: Bearer {address.key}' -d {shlex.quote(body)}"
    )

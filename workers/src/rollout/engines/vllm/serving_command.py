"""What a vLLM server that answers a gateway is started with. Another set of flags than training's (``command``).

It has its tokenizer, its statistics and its model's own end tokens; it has no development routes, no weight transfer and no
plug-in. It listens on a Unix socket in a private folder: who may ask is the gateway's matter. Starts nothing.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from rollout.engines.served.slots import count_slots
from rollout.engines.vllm.command import memory_arguments, refuse_others, socket_path
from rollout.errors import SpecError
from rollout.models.pooled import PooledModel

SHUTDOWN_SECONDS = 5
"""Of an engine that is stopped with requests under way: the gateway has drained before."""
_PARSER = re.compile(r"[a-z0-9_]{1,40}")
SERVICE = "rollout-engine"
"""In traces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSettings:
    """One vLLM server of a gateway. ``name`` is what answers name; ``kv_cache_bytes`` 0 leaves it to ``memory_fraction``.

    ``tool_parser``: vLLM's name of how this model writes calls of tools; None: it calls none.
    ``traces``: whole URL of a collector, OTLP over HTTP; empty: it traces nothing. ``pooled``: it gives vectors or scores; None: text.
    ``pair_template``: how a model that scores is shown a query and a document; empty: as its tokenizer joins two texts.
    """

    model_dir: Path
    name: str
    dtype: Literal["float32", "bfloat16", "auto"] = "auto"
    max_model_length: int
    device: Literal["cpu", "cuda"] = "cpu"
    threads: int = 1
    max_num_seqs: int = 64
    kv_cache_bytes: int = 0
    memory_fraction: float = 0.9
    tensor_parallel: int = 1
    cache_dir: Path | None = None
    tool_parser: str | None = None
    extra_arguments: tuple[str, ...] = ()
    traces: str = ""
    pooled: PooledModel | None = None
    pair_template: str = ""

    @property
    def slots(self) -> int:
        """Requests that a gateway gives it at a time."""
        return count_slots(self.max_num_seqs)


def build_serving_command(
    settings: ServingSettings, private_dir: Path
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The command, and the variables to set on top of the inherited ones. Raises SpecError as ``build_command`` does."""
    arguments = build_serving_arguments(settings, private_dir)
    command = (sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments)
    return command, build_serving_environment(settings, private_dir)


def build_serving_arguments(settings: ServingSettings, private_dir: Path) -> tuple[str, ...]:
    """What follows the server's module. Raises SpecError as ``build_command`` does."""
    refuse_others(settings.extra_arguments)
    return (
        *("--model", str(settings.model_dir), "--served-model-name", settings.name),
        *("--uds", str(socket_path(private_dir)), "--dtype", settings.dtype),
        *("--max-model-len", str(settings.max_model_length)),
        *("--max-num-seqs", str(settings.max_num_seqs)),
        *("--max-num-queued-reqs", str(2 * settings.slots)),
        *("--shutdown-timeout", str(SHUTDOWN_SECONDS)),
        *("--disable-uvicorn-access-log",),
        *memory_arguments(settings.memory_fraction, settings.kv_cache_bytes),
        *_tool_arguments(settings.tool_parser),
        *_task_arguments(settings),
        *(("--otlp-traces-endpoint", settings.traces) if settings.traces else ()),
        *("--tensor-parallel-size", str(settings.tensor_parallel)),
        *(("--enforce-eager",) if settings.device == "cpu" else ()),
        *settings.extra_arguments,
    )


def _task_arguments(settings: ServingSettings) -> tuple[str, ...]:
    """What is read of the model, which is what the embedded engine reads. Raises SpecError for tools of what gives no text."""
    pooled = settings.pooled
    if pooled is None:
        return ("--enable-prompt-tokens-details", "--enable-prefix-caching")
    if settings.tool_parser is not None:
        raise SpecError(f"--tool-call-parser: {settings.name} gives no text that could call a tool")
    if pooled.task == "embed":
        how = {"seq_pooling_type": pooled.pooling.upper(), "use_activation": pooled.normalised}
        return (*("--runner", "pooling", "--convert", "embed"), *_pooler(how))
    how = {"use_activation": pooled.activation != "none"}
    pairs = ("--chat-template", settings.pair_template) if settings.pair_template else ()
    return (*("--runner", "pooling"), *_pooler(how), *pairs)


def _pooler(how: dict[str, Any]) -> tuple[str, str]:
    return "--pooler-config", msgspec.json.encode(how).decode()


def _tool_arguments(parser: str | None) -> tuple[str, ...]:
    """Raises SpecError for what is no name of a parser: vLLM would take a path for a plug-in's."""
    if parser is None:
        return ()
    if not _PARSER.fullmatch(parser):
        raise SpecError(
            f"--tool-call-parser {parser!r:.80}: expected a name of vLLM's, such as hermes"
        )
    return ("--enable-auto-tool-choice", "--tool-call-parser", parser)


def build_serving_environment(settings: ServingSettings, private_dir: Path) -> dict[str, str]:
    """Variables of the server; every temporary file lies in ``private_dir``."""
    private = str(private_dir)
    env = {
        "TMPDIR": private,
        "HF_HOME": private,
        "VLLM_CACHE_ROOT": str(settings.cache_dir or private_dir),
        "VLLM_CONFIG_ROOT": private,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": str(settings.threads),
    }
    if settings.traces:
        env |= {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_SERVICE_NAME": SERVICE}
    if settings.device == "cpu":
        env |= {"TORCH_COMPILE_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return env

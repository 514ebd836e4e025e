"""What vLLM is started with: settings in, argument list and environment out. Starts nothing.

The server's control routes (pause, reload, remote procedure call) are unauthenticated, so it listens
on a Unix socket in a private folder and nowhere else; a user's arguments are those that only tune it.
Sampling defaults and end tokens of the model's own files are never used: no generation file, no tokenizer.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rollout.errors import SpecError
from rollout_api.fields.reserved import VLLM_FLAGS, find_bad_argument

FOLDER_PATH_MAX = 107 - len("/01234567-89ab-cdef-0123-456789abcdef")
"""Bytes of the server's folder: Linux takes 107 for a socket, and vLLM names its own there by a UUID."""

BLOCK_TOKENS = 128
"""Tokens of one cache block of vLLM on a CPU, its largest."""
KV_CACHE_MIN_BYTES = 64 * 2**20
KV_CACHE_MAX_BYTES = 4 * 2**30

PASS_TOKENS_MIN = 2048
"""What a server on a CPU computes at a time, where no prompt needs more; vLLM's own default."""

CUTTING_FLAGS = frozenset({"enable-chunked-prefill", "long-prefill-token-threshold"})

ADAPTER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM makes room for."""

POLICY = "policy"
"""What the server calls the model without an adapter."""
WORKER_EXTENSION = "rollout_vllm.worker.VersionReport"
MIDDLEWARE = "rollout_vllm.gate.VersionGate"
WEIGHT_TRANSFER = '{"backend": "rollout"}'

SleepLevel = Literal[0, 1, 2]
"""As vLLM counts; 0: a server that never sleeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSettings:
    """LoRA of ``rank``, scaled by ``alpha / rank``; the server has room for ``slots`` versions."""

    rank: int
    alpha: int
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """How to run one vLLM server. Plain data: it travels in configuration files.

    ``exact`` serves one sequence at a time with a cold cache for each, whatever
    ``max_num_seqs`` says. ``max_model_length`` counts prompt and completion tokens; ``vocab_size`` is
    the model's; ``threads`` are OpenMP threads. ``engine_dir``: the folder shared with a container that runs
    the server (``vllm_attached``); None: we start it. ``adapter``: versions are adapters over the model's own weights.
    ``cache_dir``: what vLLM finds out about an architecture is kept there, which saves a restart one of its three
    imports; None: nothing is kept. ``kv_cache_bytes`` 0 leaves the size to ``memory_fraction`` of the device.
    ``sleep_level``: how the server sleeps when it is put to (``sleeping``); 0: it never is.
    """

    model_dir: Path
    log_path: Path
    dtype: Literal["float32", "bfloat16"]
    max_model_length: int
    vocab_size: int
    exact: bool = True
    device: Literal["cpu", "cuda"] = "cpu"
    threads: int = 1
    engine_dir: Path | None = None
    adapter: AdapterSettings | None = None
    cache_dir: Path | None = None
    max_num_seqs: int = 16
    tensor_parallel: int = 1
    kv_cache_bytes: int = 256 * 2**20
    memory_fraction: float = 0.2
    sleep_level: SleepLevel = 0
    extra_arguments: tuple[str, ...] = ()
    start_seconds_max: float = 300.0
    request_seconds_max: float = 600.0
    load_seconds_max: float = 300.0
    stop_seconds_max: float = 10.0
    restarts_max: int = 5

    @property
    def num_seqs(self) -> int:
        """Sequences that the server decodes together."""
        return 1 if self.exact else self.max_num_seqs


def build_command(
    settings: VllmSettings, private_dir: Path
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The command of a server that we start, and the variables to set on top of the inherited ones.

    ``private_dir`` belongs to this server alone. Raises SpecError as ``build_arguments`` does.
    """
    arguments = build_arguments(settings, private_dir)
    command = (sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments)
    return command, build_environment(settings, private_dir)


def build_arguments(settings: VllmSettings, private_dir: Path) -> tuple[str, ...]:
    """The server's arguments; the socket lies in ``private_dir``.

    Raises SpecError for an extra argument that is not the user's to set or a socket path too long.
    """
    refuse_others(settings.extra_arguments)
    return (
        *("--model", str(settings.model_dir), "--served-model-name", POLICY),
        *("--uds", str(socket_path(private_dir))),
        *("--enable-scale-out", "--skip-tokenizer-init", "--generation-config", "vllm"),
        *("--logprobs-mode", "processed_logprobs", "--worker-extension-cls", WORKER_EXTENSION),
        *("--weight-transfer-config", WEIGHT_TRANSFER, "--middleware", MIDDLEWARE),
        *("--dtype", settings.dtype, "--max-model-len", str(settings.max_model_length)),
        *("--max-num-seqs", str(settings.num_seqs)),
        *("--disable-uvicorn-access-log", "--disable-log-stats"),
        *memory_arguments(settings.memory_fraction, settings.kv_cache_bytes),
        *_executor_arguments(settings),
        *_pass_arguments(settings),
        *_adapter_arguments(settings.adapter),
        *(("--enable-sleep-mode",) if settings.sleep_level else ()),
        *(("--no-enable-prefix-caching",) if settings.exact else ("--enable-prefix-caching",)),
        *settings.extra_arguments,
    )


def socket_path(private_dir: Path) -> Path:
    """Where the server listens. Raises SpecError when the path is too long for a socket."""
    if len(str(private_dir).encode()) > FOLDER_PATH_MAX:
        raise SpecError(
            f"the engine's folder {private_dir} is longer than {FOLDER_PATH_MAX} bytes, too long for "
            "sockets: set TMPDIR to a shorter folder"
        )
    return private_dir / "api.sock"


def refuse_others(arguments: Sequence[str]) -> None:
    """Raise SpecError for anything but flags that only tune the server, in their full spelling, and plain values."""
    found = find_bad_argument(arguments)
    if found is not None:
        raise SpecError(
            f"actors.engine.vllm.extraArguments: {found!r:.120} is not yours to set; expected one of"
            f" {', '.join(sorted(VLLM_FLAGS))} with a plain word or number"
        )


def plan_kv_cache_bytes(
    elements_per_token: int, dtype: Literal["float32", "bfloat16"], *, length: int, num_seqs: int
) -> int:
    """Bytes of KV cache for ``num_seqs`` sequences of ``length`` tokens, within fixed bounds.

    Always room for one whole sequence, without which vLLM does not start.
    """
    blocks = math.ceil(length / BLOCK_TOKENS) + 1
    item_bytes = 4 if dtype == "float32" else 2
    one_seq = blocks * BLOCK_TOKENS * elements_per_token * item_bytes
    return max(one_seq, min(max(num_seqs * one_seq, KV_CACHE_MIN_BYTES), KV_CACHE_MAX_BYTES))


def memory_arguments(fraction: float, kv_cache_bytes: int) -> tuple[str, ...]:
    """Of a device how much, and for the cache how much of it; 0: what vLLM finds."""
    words = ("--gpu-memory-utilization", str(fraction))
    return (*words, "--kv-cache-memory-bytes", str(kv_cache_bytes)) if kv_cache_bytes else words


def _adapter_arguments(adapter: AdapterSettings | None) -> tuple[str, ...]:
    if adapter is None:
        return ()
    rank = next((one for one in ADAPTER_RANKS if one >= adapter.rank), None)
    if rank is None:
        raise SpecError(
            f"spec.model.lora.rank: vLLM serves ranks up to {ADAPTER_RANKS[-1]}, got {adapter.rank}"
        )
    slots = str(adapter.slots)
    return ("--enable-lora", "--max-lora-rank", str(rank), "--max-cpu-loras", slots)


def _executor_arguments(settings: VllmSettings) -> tuple[str, ...]:
    if settings.device == "cpu" and settings.tensor_parallel == 1:
        return ("--enforce-eager", "--distributed-executor-backend", "uni")
    parallel = ("--tensor-parallel-size", str(settings.tensor_parallel))
    return (*parallel, "--enforce-eager") if settings.device == "cpu" else parallel


def _pass_arguments(settings: VllmSettings) -> tuple[str, ...]:
    """On a CPU no prompt is cut between two passes of the model.

    vLLM draws a token for every part of a prompt and then sets the sample's own noise back, which generators of CPUs
    cannot do: the server would end. Uncut, the longest prompt has to fit into one pass. Raises SpecError.
    """
    if settings.device != "cpu":
        return ()
    given = (one.removeprefix("--").partition("=")[0] for one in settings.extra_arguments)
    if found := next((name for name in given if name in CUTTING_FLAGS), None):
        raise SpecError(
            f"actors.engine.vllm.extraArguments: {found} cuts prompts into parts, which ends a server on a CPU"
            " that samples by seeds; remove it, or give actors an accelerator"
        )
    tokens_max = max(settings.max_model_length, PASS_TOKENS_MIN)
    return ("--no-enable-chunked-prefill", "--max-num-batched-tokens", str(tokens_max))


def build_environment(settings: VllmSettings, private_dir: Path) -> dict[str, str]:
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
        "VLLM_SERVER_DEV_MODE": "1",
        "OMP_NUM_THREADS": str(settings.threads),
    }
    if settings.adapter is not None:
        env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if settings.device == "cpu":
        # Eager without this compiles sampler helpers on the first request (18 s); one process fewer,
        # whose threads are then OMP_NUM_THREADS and not bound to one core shared by every server.
        env |= {"TORCH_COMPILE_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        if settings.tensor_parallel == 1:
            env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return env

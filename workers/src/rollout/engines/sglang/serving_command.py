"""What an SGLang server that answers a gateway is started with: settings in, a file of options and an environment out. Starts nothing.

Options and routes are those of SGLang 0.5.23, read in its source; no server of it has run behind ours yet. It pins another torch
than ours, so it lies in an environment of its own, whose interpreter ``ROLLOUT_SGLANG_PYTHON`` names. It knows no Unix sockets: it listens on a
port of loopback and asks for a key, which stands in a file that only this user reads: a command line is everybody's to read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rollout.errors import SpecError

PYTHON = "ROLLOUT_SGLANG_PYTHON"
SGLANG_READ = "0.5.23"
"""The release in which options, routes and answers were read."""
LOOPBACK = "127.0.0.1"
UNPROVEN = "unproven: no server of it has run behind ours yet"
_PARSER = re.compile(r"[a-z0-9_]{1,40}")
PRIVATE = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangSettings:
    """One SGLang server of a gateway. ``name`` is what answers name; ``key`` is asked of whoever asks it.

    ``queued_max``: requests that may wait in it. ``tool_parser``: SGLang's name of how this model writes calls of tools; None: it calls none.
    """

    python: Path
    model_dir: Path
    name: str
    port: int
    key: str
    max_model_length: int
    max_num_seqs: int
    queued_max: int
    tensor_parallel: int = 1
    threads: int = 1
    tool_parser: str | None = None
    cache_dir: Path


def find_python(environment: Mapping[str, str]) -> Path:
    """The interpreter of SGLang's environment. Raises SpecError where none is named, or what is named cannot be run."""
    named = environment.get(PYTHON)
    if not named:
        raise SpecError(
            f"the sglang engine needs an environment of its own: install sglang there, and set {PYTHON} to its interpreter"
        )
    path = Path(named)
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise SpecError(f"{PYTHON}={named!r:.200}: expected the path of a Python interpreter")
    return path


def build_options(settings: SglangSettings) -> dict[str, str | int | bool]:
    """The server's options by their names in a file. Raises SpecError for what is no name of a parser."""
    return {
        "model-path": str(settings.model_dir),
        "served-model-name": settings.name,
        "host": LOOPBACK,
        "port": settings.port,
        "api-key": settings.key,
        "device": "cuda",
        "context-length": settings.max_model_length,
        "max-running-requests": settings.max_num_seqs,
        "max-queued-requests": settings.queued_max,
        "tp-size": settings.tensor_parallel,
        "enable-cache-report": True,
        "log-level": "warning",
        **_tool_options(settings.tool_parser),
    }


def write_command(
    settings: SglangSettings, private_dir: Path
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The command, and the variables to set on top of the inherited ones; its options are written into ``private_dir``.

    Raises SpecError as ``build_options`` does.
    """
    path = private_dir / "sglang.yaml"
    path.touch(mode=PRIVATE)
    path.write_bytes(msgspec.json.encode(build_options(settings)))  # JSON is YAML
    command = (str(settings.python), "-m", "sglang.launch_server", "--config", str(path))
    return command, build_environment(settings, private_dir)


def build_environment(settings: SglangSettings, private_dir: Path) -> dict[str, str]:
    """Variables of the server. Nothing of our environment's packages reaches its interpreter, and it asks nobody but itself."""
    private = str(private_dir)
    return {
        "PYTHONPATH": "",
        "TMPDIR": private,
        "HF_HOME": private,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "SGLANG_CACHE_DIR": str(settings.cache_dir),
        # Else a health check of an idle server computes a token, and takes a second.
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
        "OMP_NUM_THREADS": str(settings.threads),
        "NO_PROXY": LOOPBACK,
        "no_proxy": LOOPBACK,
    }


def _tool_options(parser: str | None) -> dict[str, str]:
    if parser is None:
        return {}
    if not _PARSER.fullmatch(parser):
        raise SpecError(
            f"--tool-call-parser {parser!r:.80}: expected a name of SGLang's, such as qwen"
        )
    return {"tool-call-parser": parser}

"""What a run's author may hand to processes that rollout starts: server flags by a list of what is harmless, variables by what is not.

vLLM has hundreds of flags, and each version more of them; some load code, open ports or read files. So a flag is
refused unless it is known to tune and nothing else. The dynamic loader and Python read variables before any code of
ours runs: with one of them an author's library would run in every process, with its credentials.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

VLLM_FLAGS = frozenset(
    {
        "all2all-backend",
        "async-scheduling",
        "block-size",
        "calculate-kv-scales",
        "cpu-offload-gb",
        "cuda-graph-sizes",
        "disable-cascade-attn",
        "disable-custom-all-reduce",
        "enable-chunked-prefill",
        "enable-expert-parallel",
        "enforce-eager",
        "kv-cache-dtype",
        "long-prefill-token-threshold",
        "max-cudagraph-capture-size",
        "max-long-partial-prefills",
        "max-num-batched-tokens",
        "max-num-partial-prefills",
        "max-parallel-loading-workers",
        "no-async-scheduling",
        "no-enable-chunked-prefill",
        "num-gpu-blocks-override",
        "quantization",
        "scheduling-policy",
        "swap-space",
    }
)
"""Flags of the server that tune it: none of them names a file, a module, an address or a format of weights."""

_FLAG_VALUE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,+-]{0,127}")

_PREFIXES = ("LD_", "DYLD_")
LOADER_VARIABLES = frozenset(
    {
        *("BASH_ENV", "ENV", "GCONV_PATH", "GLIBC_TUNABLES", "IFS", "PATH", "SHELLOPTS"),
        *("PYTHONBREAKPOINT", "PYTHONEXECUTABLE", "PYTHONHOME", "PYTHONINSPECT", "PYTHONPATH"),
        *("PYTHONPLATLIBDIR", "PYTHONPYCACHEPREFIX", "PYTHONSTARTUP", "PYTHONUSERBASE"),
        *("PYTHONWARNINGS", "VLLM_ALLOW_INSECURE_SERIALIZATION", "VLLM_PLUGINS"),
        *("VLLM_SERVER_DEV_MODE", "VLLM_USE_MODELSCOPE"),
    }
)
"""Variables by which a process runs other code than it was started with."""


def is_loader_variable(name: str) -> bool:
    """Whether a process that has this variable may run code that nobody named."""
    return name.startswith(_PREFIXES) or name in LOADER_VARIABLES


def is_vllm_flag(name: str) -> bool:
    """Whether this flag, in its full spelling and without dashes, is an author's to set."""
    return name in VLLM_FLAGS


def is_flag_value(value: str) -> bool:
    """Whether a value is a plain word or number: no other flag, no path, no JSON. Empty: the flag stands alone."""
    return not value or _FLAG_VALUE.fullmatch(value) is not None


def find_bad_argument(arguments: Sequence[str]) -> str | None:
    """The first of a server's extra arguments that is no allowed flag and no value of the one before it."""
    takes_value = False
    for argument in arguments:
        if takes_value and is_flag_value(argument) and argument:
            takes_value = False
            continue
        name, mark, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not is_vllm_flag(name) or not is_flag_value(value):
            return argument
        takes_value = not mark
    return None

"""Starts ``rollout``, pods and whole runs by forking them from a process that has imported what they need, once a test process.

What is forked is what ``python -m`` starts (rollout/supervisor/test_a_forked_process_is_what_a_started_one_would_be.py),
without the seconds of CPU that its imports take; what it starts in its turn is forked, too (``spells/forked_spells.py``).
The command line is started plainly in test_a_detached_run_goes_on_alone.py, test_a_sweep_goes_on_where_it_was.py and
test_the_gsm8k_sample_starts.py, a service in test_clients_that_vanish_or_meet_lose_nothing.py.

A process whose variables differ from those that libraries have read by now is started plainly, and a warning names them:
a test that sets one for good (``os.environ[...] = ``) has every later run of its session import for itself.
"""

from __future__ import annotations

import atexit
import os
import select
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO

from rollout.common import child_processes
from rollout.common.child_processes import Process
from rollout.supervisor.fork_server import FORKED, ForkServer, open_fork_server

sys.path.append(str(Path(__file__).parent / "rollout" / "supervisor" / "spells"))

from forks import Forks

SPELLS = Path(__file__).parent / "rollout" / "supervisor" / "spells"
READY_SECONDS_MAX = 600.0
COMMAND_SECONDS_MAX = 800.0
PROGRAM = "rollout"
RUNS = 3
"""As many runs of one pipeline are forked from what is warm; further ones import for themselves."""
SERVERS = RUNS + 1
"""One more forks what a command or a supervisor starts itself."""
PRELOADED = FORKED | {"rollout.entrypoints.coordinator", "rollout.entrypoints.resolve"}
LATE = (
    *("ROLLOUT_", "XDG_CONFIG_HOME", "CUDA_VISIBLE_DEVICES", "TINKER_", "MY_"),
    *("AWS_", "GOOGLE_", "GCE_", "NO_GCE_CHECK", "CLOUDSDK_", "STORAGE_EMULATOR_HOST"),
)
"""Variables of these beginnings are read when they are needed, never at import: what is forked has its own."""


FIRST = dict(os.environ)
LEFT_BY_LIBRARIES = (
    *("TORCH", "PYTORCH_", "TRITON_", "TILELANG_", "CUBLAS_", "VLLM_", "_MLFLOW_"),
    *("LD_LIBRARY_PATH", "DISABLE_GCS_"),
    *("MLFLOW_DISABLE_TELEMETRY", "MLFLOW_HTTP_REQUEST_", "WANDB_SERVICE"),
)
"""Set by what a test process has imported by now, and by nobody for the processes that it starts."""


def outside_of_tests() -> dict[str, str]:
    """Our environment as a shell has it: without what pytest changes from test to test, and what libraries left in it."""
    kept = {name: FIRST[name] for name in FIRST if name.startswith(LEFT_BY_LIBRARIES)}
    dropped = ("PYTEST_CURRENT_", *LEFT_BY_LIBRARIES)
    return kept | {
        name: value for name, value in os.environ.items() if not name.startswith(dropped)
    }


def settings() -> dict[str, str]:
    """What every process of a test's run is started with, so that one server serves all of them."""
    found = os.environ.get("PYTHONPATH")
    return {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([str(SPELLS), *([found] if found else [])]),
    }


BEGAN = {**outside_of_tests(), **settings()}
"""Before a test changes anything."""


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(LATE)}


def serves(environment: Mapping[str, str]) -> bool:
    """Whether a process with this environment may be forked: libraries have read theirs."""
    found, began = _early(environment).items(), _early(BEGAN).items()
    if differ := sorted({name for name, _ in found ^ began}):
        warnings.warn(f"started plainly: {', '.join(differ)} differ", stacklevel=3)
    return not differ


@cache
def warm_server() -> ForkServer:
    """What forks this test process's commands and supervisors, each with a fork server for its own processes."""
    folder = Path(tempfile.mkdtemp())
    server = open_fork_server(PRELOADED, BEGAN, folder / "fork-server.log")
    atexit.register(shutil.rmtree, folder)
    atexit.register(server.close)
    while not server.is_ready():
        select.select([server.descriptor], [], [], READY_SECONDS_MAX)
    return server


@contextmanager
def forking_here() -> Iterator[None]:
    """For runs that are started in a test's own process: what they start is forked."""
    late = (*LATE, *LEFT_BY_LIBRARIES, "PYTEST_", "PYTHONPATH")
    plain = child_processes.subprocess
    child_processes.subprocess = Forks(warm_server(), BEGAN, late)
    try:
        yield
    finally:
        child_processes.subprocess = plain


def start_rollout(
    *words: str, folder: Path, out: int, err: int, environment: Mapping[str, str] | None = None
) -> Process:
    """``rollout WORDS`` in ``folder``, its streams given to open files; ``environment`` is added to ours."""
    return start_module(PROGRAM, *words, folder=folder, out=out, err=err, environment=environment)


def start_module(
    *words: str, folder: Path, out: int, err: int, environment: Mapping[str, str] | None = None
) -> Process:
    """``python -m MODULE ARGUMENTS``, likewise."""
    wanted = {**outside_of_tests(), **settings(), **(environment or {})}
    with Path(os.devnull).open("rb") as nothing:
        if serves(wanted):
            files = {0: nothing.fileno(), 1: out, 2: err}
            return warm_server().fork(
                words, environment=wanted, files=files, folder=folder, passes_on=SERVERS
            )
        return subprocess.Popen(
            [sys.executable, "-m", *words],
            env=wanted,
            cwd=folder,
            stdin=nothing,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )


def run_rollout(
    *words: str,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    seconds_max: float = COMMAND_SECONDS_MAX,
) -> subprocess.CompletedProcess[str]:
    """``rollout WORDS`` in ``folder`` until it ends: its exit code and what it wrote."""
    return run_module(
        PROGRAM, *words, folder=folder, environment=environment, seconds_max=seconds_max
    )


def run_module(
    *words: str,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    seconds_max: float = COMMAND_SECONDS_MAX,
) -> subprocess.CompletedProcess[str]:
    """``python -m MODULE ARGUMENTS``, likewise."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = start_module(
            *words, folder=folder, out=out.fileno(), err=err.fileno(), environment=environment
        )
        try:
            code = process.wait(seconds_max)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        return subprocess.CompletedProcess(words, code, _read(out), _read(err))


def _read(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode()

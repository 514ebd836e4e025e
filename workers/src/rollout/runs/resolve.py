"""What only a look at the model and the data can tell, found out in a process of its own.

The supervisor stays light: building a model may need torch, so ``rollout.entrypoints.resolve`` does
the looking, and this module only asks. The question is JSON, the answer one frame; what the author's code prints goes to the log.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec

from rollout import errors
from rollout.common.child_processes import log_size, log_tail, signal_group, start_tied
from rollout.common.frames import read_frame, write_frame
from rollout.errors import DataError, RolloutError, RunFailed
from rollout.models.experts.families import ExpertShape
from rollout.plugins.author import author_environment
from rollout.plugins.row_messages import (
    LENGTH_MAX,
    MESSAGE_CHARACTERS_MAX,
    SourceFacts,
    check_facts,
)
from rollout.turns import ToolSpec
from rollout_api.fields.credentials import mask
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.visible import visible

STANDARD_OUTPUT, STANDARD_ERROR = 1, 2
ANSWER_BYTES_MAX = 16 << 20
END_SECONDS_MAX = 10.0
LAST_LINES_MAX = 15
RESOLVE_SECONDS_MAX = 1800.0
"""A model of many gigabytes is downloaded in this time."""


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a look at the models has found, which takes none of the author's code. The fields are those of a Resolution."""

    model_path: str
    model_digest: str
    model_revision: str | None
    num_parameters: int
    context_length: int
    stop_token_ids: tuple[int, ...]
    pad_token_id: int
    models: dict[str, str]
    model_digests: dict[str, str]
    model_revisions: dict[str, str]
    experts: ExpertShape | None = None


class ResolveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``spec`` is a resolved RolloutRunSpec as plain data; ``model_path`` overrides ``spec.model``.

    ``models`` are folders of further models by role, where other runs have made them. ``loads_rewards``: import the
    user's rewards once, in processes of their own. ``known``: what was found of the models, which are not looked at again.
    ``server_tools``: what each MCP server has said of its tools.
    """

    spec: dict[str, Any]
    model_path: str | None = None
    models: dict[str, str] = {}
    offline: bool = False
    loads_rewards: bool = False
    known: ModelFacts | None = None
    server_tools: dict[str, tuple[ToolSpec, ...]] = {}


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. ``data_digests`` by role; ``num_rows`` and ``num_bad`` of the training data.

    ``left_out`` are positions of rows whose prompt is too long. ``first_bad`` says of a few bad records where they lie and why they cannot be used.

    ``models``, ``model_digests`` and ``model_revisions`` (of ``hf://`` ones) are of further models, by role.
    ``experts``: those of a policy whose training samples tell them.
    """

    model_path: str
    model_digest: str
    model_revision: str | None
    num_parameters: int
    context_length: int
    stop_token_ids: tuple[int, ...]
    pad_token_id: int = 0
    prompt_tokens_max: int
    data_digests: dict[str, str]
    models: dict[str, str] = {}
    model_digests: dict[str, str] = {}
    model_revisions: dict[str, str] = {}
    experts: ExpertShape | None = None
    tool_digests: dict[str, str] = {}
    plugin_digests: dict[str, str] = {}
    tracker_digests: dict[str, str] = {}
    num_rows: int | None = None
    left_out: tuple[int, ...] = ()
    num_bad: int = 0
    first_bad: str = ""


def believe(found: Resolution, known: ModelFacts, field: str) -> Resolution:
    """What a process that runs the author's code has found of the data, with what is known of the models. Raises DataError."""
    numbers = {"num_bad": (found.num_bad,), "left_out": found.left_out}
    numbers["num_rows"] = () if found.num_rows is None else (found.num_rows,)
    for name, values in numbers.items():
        if bad := [value for value in values if not 0 <= value <= LENGTH_MAX]:
            raise DataError(f"{field}: {name}: {bad[0]} is no number of rows")
    if not 1 <= found.prompt_tokens_max <= known.context_length:
        raise DataError(
            f"{field}: prompt_tokens_max: expected 1 to {known.context_length}, got {found.prompt_tokens_max}"
        )
    plugins = (found.plugin_digests, found.tracker_digests)
    digests = (found.data_digests, found.tool_digests, *plugins)
    for role, digest in (one for some in digests for one in some.items()):
        check_facts(SourceFacts(role=role[:80], digest=digest, length=0), field)
    facts = msgspec.structs.asdict(known)
    said = visible(found.first_bad)[:MESSAGE_CHARACTERS_MAX]
    return msgspec.structs.replace(found, **facts, first_bad=said)


class ResolveAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Either a resolution, or an error of ``rollout.errors`` by class name."""

    resolution: Resolution | None = None
    error: str = ""
    message: str = ""


class Resolving:
    """A resolution under way in a child process; ``wait`` for it once."""

    def __init__(self, request: ResolveRequest, log: Path) -> None:
        self._log, self._log_start = log, log_size(log)
        self._environment = author_environment(
            os.environ, RolloutRunSpec.model_validate(request.spec)
        )
        with log.open("ab") as stderr:
            self._process = start_tied(
                "rollout.entrypoints.resolve",
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(request))
        self._process.stdin.close()
        self._process.stdin = None

    def wait(self, seconds_max: float = RESOLVE_SECONDS_MAX) -> Resolution:
        """The resolution. Raises what the child raised, and RunFailed when it died."""
        deadline = time.monotonic() + seconds_max
        assert self._process.stdout is not None
        try:
            answer = read_frame(
                self._process.stdout.fileno(), ResolveAnswer, deadline, bytes_max=ANSWER_BYTES_MAX
            )
        except TimeoutError as error:
            self.close()
            raise RunFailed(
                f"model and data were not resolved within {seconds_max:.0f} s{self._last_words()}"
            ) from error
        except (EOFError, ValueError) as error:
            self._end()
            raise RunFailed(
                f"the process that resolves model and data died (exit code "
                f"{self._process.returncode}): {error}{self._last_words()}"
            ) from error
        self._end()
        if answer.resolution is None:
            kind = getattr(errors, answer.error, None)
            known = isinstance(kind, type) and issubclass(kind, RolloutError)
            raise (kind if known else RolloutError)(answer.message)
        return answer.resolution

    def _last_words(self) -> str:
        """What the child wrote last: whoever asked may keep no log."""
        tail = log_tail(self._log, start=self._log_start, lines_max=LAST_LINES_MAX)
        said = visible(mask(tail, self._environment))
        return f"; it wrote last:\n{said}" if said else "; it wrote nothing"

    def _end(self) -> None:
        """Wait for the child, which has nothing left to say; what it started ends with it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS_MAX)
        self.close()

    def close(self) -> None:
        """End the child, and what it started, when it still runs; idempotent."""
        signal_group(self._process, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def keep_answers_apart() -> int:
    """Where the child writes its answer: what the author's code prints goes to the log instead."""
    answers = os.dup(STANDARD_OUTPUT)
    os.dup2(STANDARD_ERROR, STANDARD_OUTPUT)
    return answers


def main_answer(answers: int, answer: ResolveAnswer) -> None:
    """Write an answer as the child does."""
    write_frame(answers, answer)

"""What an agent environment runs: its command and files, and the program that judges what it left behind. Data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from rollout.data.rows.mapping import row_messages
from rollout.errors import InfrastructureError
from rollout.seeds import derive_seed
from rollout.tools.sandbox.agent_sandbox import LOGS, PORT, TESTS, AgentCommand
from rollout.tools.sandbox.contract import CommandResult
from rollout.types import Row

INSTRUCTION = "{instruction}"
"""Stands for the row's prompt in a word of the command."""
REWARD_FILE = f"{LOGS}/verifier/reward.txt"
REWARDS_FILE = f"{LOGS}/verifier/reward.json"
BESIDE = "/tmp/.agent"  # noqa: S108 - in the sandbox
"""The folder of an agent's own files where its working folder is a task's."""
REWARD_MAX = 1_000_000.0
SAID_CHARACTERS_MAX = 200
PASSED, FAILED = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierProgram:
    """Runs in the agent's sandbox once the agent has ended."""

    command: tuple[str, ...]
    """Its words; no shell reads them."""
    files: tuple[tuple[str, bytes], ...]
    """By path below ``/tests``."""
    seconds: float
    """What it may take; beyond it the episode has no verdict."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables, by name."""
    by_file: bool = False
    """What it has written is its verdict whatever its exit code, and nothing else is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProgram:
    """An agent, and the bounds of its sandbox where that is one of this machine."""

    command: tuple[str, ...]
    """Its words; ``{instruction}`` in one of them stands for the row's prompt."""
    files: tuple[tuple[str, bytes], ...] = ()
    """By path below the working folder."""
    verifier: VerifierProgram | None = None
    """Judges what it left behind; None: the episode has no verdict of its own, rewards alone judge."""
    max_turns: int = 32
    """Replies of the policy in one episode."""
    seconds: float = 600.0
    """The agent's own, without those of the model."""
    beside: tuple[tuple[str, bytes], ...] = ()
    """By path below ``BESIDE``: files of its own where the working folder is a task's."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables, by name; those that name its endpoint are added."""
    memory: bool = False
    """Its endpoint answers what it reads and writes of what is kept between episodes."""
    memory_bytes: int = 1 << 30
    """Of the sandbox."""
    disk_bytes: int = 64 << 20
    """Of each folder that it may write."""


def agent_command(program: AgentProgram, row: Row, key: str, seconds_max: float) -> AgentCommand:
    """An episode's agent, with its endpoint in its environment, and the row's prompt on its standard input."""
    instruction = "\n\n".join(message.text for message in row_messages(row))
    url = f"http://127.0.0.1:{PORT}"
    return AgentCommand(
        argv=tuple(word.replace(INSTRUCTION, instruction) for word in program.command),
        seconds=seconds_max,
        processor_seconds=program.seconds,
        stdin=instruction.encode(),
        environment={
            **dict(program.environment),
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_BASE": f"{url}/v1",
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": key,
            "ROLLOUT_SEED": str(row_seed(row)),
        },
        files={
            **{f"/box/{name}": data for name, data in program.files},
            **{f"{BESIDE}/{name}": data for name, data in program.beside},
        },
        emptied=(BESIDE,) if program.beside else (),
    )


def verifier_command(verifier: VerifierProgram, row: Row) -> AgentCommand:
    """The judgement of an episode: fresh ``/tests`` and ``/logs``, the row as ``/tests/row.json``."""
    files = {f"{TESTS}/row.json": json.dumps(row, ensure_ascii=False).encode()}
    files |= {f"{TESTS}/{name}": data for name, data in verifier.files}
    files[f"{LOGS}/verifier/.keep"] = b""
    return AgentCommand(
        argv=verifier.command,
        seconds=verifier.seconds,
        processor_seconds=verifier.seconds,
        environment=dict(verifier.environment),
        files=files,
        emptied=(TESTS, LOGS),
        read=(REWARD_FILE, REWARDS_FILE) if verifier.by_file else (REWARD_FILE,),
    )


def row_seed(row: Row) -> int:
    """A number of a row's own, the same in every replay."""
    return derive_seed(0, json.dumps(row, sort_keys=True, ensure_ascii=False), 0) % 2**31


def read_verdict(
    result: CommandResult, files: Mapping[str, bytes], *, by_file: bool = False
) -> float:
    """The reward: what is in the file, else 1 for exit code 0 and 0 for 1.

    ``by_file``: what is in either file, whatever the exit code. Raises InfrastructureError for any other end: a
    verifier that crashes has judged nothing.
    """
    written = files.get(REWARD_FILE)
    if by_file and result.cause == "exit" and files:
        return (
            _read_rewards(files[REWARDS_FILE]) if REWARDS_FILE in files else _read_number(written)
        )
    if not by_file and result.cause == "exit" and result.code in (PASSED, FAILED):
        if written is None:
            return 1.0 if result.code == PASSED else 0.0
        return _read_number(written)
    said = describe_output(result)
    without = " and wrote no reward" if by_file and result.cause == "exit" else ""
    raise InfrastructureError(
        f"the verifier ended by {result.cause} ({result.code}){without}: {said}"
    )


def _read_rewards(written: bytes) -> float:
    """The member ``reward``, or the only one, or the number that there is. Raises InfrastructureError."""
    try:
        found = json.loads(written)
    except ValueError as error:
        raise InfrastructureError(f"the verifier wrote no JSON: {written!r:.80}") from error
    if isinstance(found, dict):
        found = found.get("reward", next(iter(found.values())) if len(found) == 1 else None)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise InfrastructureError(
            f"the verifier wrote no number `reward` and more than one other: {written!r:.80}"
        )
    return _read_number(str(found).encode())


def _read_number(written: bytes | None) -> float:
    assert written is not None
    try:
        found = float(written.decode())
    except ValueError as error:
        raise InfrastructureError(f"the verifier wrote no number: {written!r:.80}") from error
    if not math.isfinite(found) or abs(found) > REWARD_MAX:
        raise InfrastructureError(f"the verifier wrote {found}, no finite number of use")
    return found


def describe_output(result: CommandResult) -> str:
    """The end of what a program said, for people."""
    said = result.stderr.tail or result.stderr.head or result.stdout.tail or result.stdout.head
    return " ".join(said.decode(errors="replace").split())[-SAID_CHARACTERS_MAX:]

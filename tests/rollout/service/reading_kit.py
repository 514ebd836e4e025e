"""A service that has trained a little, and the commands that read its book."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from service_kit import sequence_datum
from typer.testing import CliRunner

from rollout.cli.main import app

STEPS = 3


def code_of(*words: str) -> tuple[int, str]:
    """A command's exit code and what it prints; what it raises is raised."""
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    return done.exit_code, done.stdout


def rollout(*words: str) -> str:
    code, said = code_of(*words)
    assert code == 0, said
    return said


def told(*words: str) -> Any:
    return json.loads(rollout(*words, "--output", "json"))


def change(book: Path, sql: str, *values: Any) -> None:
    """What no service does to its book."""
    with closing(sqlite3.connect(book)) as connection, connection:
        connection.execute(sql, values)


async def small_loop(client) -> None:
    """Three steps, a refused call, saved weights and a sampler without a name, sampled from."""
    await client.begin()
    for _ in range(STEPS):
        await client.answer(await client.backward([sequence_datum(), sequence_datum()]))
        await client.answer(await client.step())
    await client.answer(await client.backward([sequence_datum(weights=[1.0])]))
    saved = await client.answer(await client.save())
    await client.answer(await client.sample(saved["sampling_session_id"], num_samples=2))

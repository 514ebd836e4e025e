"""What every view needs of a request: the run that it names, its numbers, and a thread to read in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from aiohttp import web

from rollout.errors import SpecError

T = TypeVar("T")
HOME: web.AppKey[Path] = web.AppKey("home", Path)
READERS: web.AppKey[asyncio.Semaphore] = web.AppKey("readers", asyncio.Semaphore)
READERS_MAX = 4
CONFIG = "worker.json"
STEPS_MAX = 1 << 31
PAGES_MAX = 1_000_000
WORD_MAX = 200


async def reading(request: web.Request, read: Callable[[], T]) -> T:
    """What ``read`` gives, made in a thread; few read at a time."""
    async with request.app[READERS]:
        return await asyncio.to_thread(read)


async def answer(request: web.Request, make: Callable[[], str]) -> web.Response:
    """The page that ``make`` gives, made in a thread; it travels compressed."""
    response = web.Response(text=await reading(request, make), content_type="text/html")
    response.enable_compression()
    return response


def folder_of(request: web.Request) -> Path:
    """The folder of the run that the address names. Raises SpecError."""
    return find_folder(request.app[HOME], request.match_info["run"])


def find_folder(home: Path, name: str) -> Path:
    """A run's folder by its folder's name. Raises SpecError for any other name."""
    plain = name == Path(name).name and not name.startswith(".") and "\0" not in name
    if not plain or not (home / name / CONFIG).is_file():
        raise SpecError(f"there is no run {name!r} in {home}: choose one of the list of runs")
    return home / name


def number_of(request: web.Request, name: str, *, most: int = STEPS_MAX) -> int | None:
    """A number from 0 of an address; None where there is none. Raises SpecError."""
    text = request.query.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or int(text[:20]) > most:
        raise SpecError(f"{name}={text[:40]}: give a whole number from 0 to {most}")
    return int(text)


def page_of(request: web.Request) -> int:
    """The page that the address asks for, from 1 on. Raises SpecError."""
    return number_of(request, "page", most=PAGES_MAX) or 1


def word_of(request: web.Request, name: str) -> str:
    """A word of an address, empty where there is none. Raises SpecError for a long one."""
    text = request.query.get(name, "")
    if len(text) > WORD_MAX:
        raise SpecError(f"{name}: at most {WORD_MAX} characters, got {len(text)}")
    return text


def choice_of(request: web.Request, name: str, choices: tuple[str, ...]) -> str:
    """One of the choices, the first where the address has none. Raises SpecError for any other."""
    text = request.query.get(name) or choices[0]
    if text not in choices:
        raise SpecError(f"{name}={text[:40]}: choose one of {', '.join(choices)}")
    return text

"""The service as a process: opens its book, makes its calls again, listens, and ends when it is told to.

Nothing is lost at an end: calls that were acknowledged are in the book, and are made at the next start.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from rollout.common.duties import Duty, keep_going
from rollout.common.stacks import heed_end
from rollout.errors import CoordinatorError, SpecError
from rollout.inference.gateway.keys import KeyFile
from rollout.learner.model.numerics import apply_numerics, runtime_identity
from rollout.learner.model.parallel import CPU
from rollout.ledger.sqlite.call_book import CallBook
from rollout.service.api import build_service
from rollout.service.asking import ServiceDoor
from rollout.service.desk import TrainingDesk
from rollout.service.kept.tensors import Keeper
from rollout.service.registry import AnySaved, ServedBase, base_id, booked
from rollout.service.saved.archive import Downloads
from rollout.service.settings import TrainingServiceSettings
from rollout.service.tenants.door import KeyDoor
from rollout.service.training.bases import TrainingBase, load_base, split_target

log = logging.getLogger(__name__)

BASES_MAX = 8
GRACE_SECONDS = 5.0
IDLE_SECONDS = 300.0
"""After which a connection without a request, or with half of a head, is closed."""
DOWNLOADS = "downloads"
WriteSaved = Callable[[Path, Path, str, Path], None]
"""From a service's folder, a base's folder and the path of something saved to its folder, the last."""


async def serve_training(
    settings: TrainingServiceSettings,
    listening: Callable[[str, tuple[str, ...]], None],
    beside: Callable[[TrainingDesk], Mapping[str, Duty]] = lambda _: {},
    write_saved: WriteSaved | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. ``listening`` hears the address and the base models.

    ``beside``: what else is done once the service answers, by name; where one of these fails too often, so does the service.
    ``write_saved``: makes the folder of something saved, to be downloaded; None: that is not offered.

    Raises SpecError, ModelNotFound, LedgerError, and CoordinatorError where the address is taken.
    """
    stop = asyncio.Event()
    heed_end(stop.set, asyncio.get_running_loop(), shows=lambda: False)
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))  # as a gateway: one a connection
    apply_numerics(threads=settings.threads, exact=True)
    bases = _load_bases(settings.bases)
    _check_names(settings.full_weights, bases)
    book = CallBook(settings.folder / "calls.sqlite", identify(settings))
    note_bases(book, settings.bases, bases)
    desk = TrainingDesk(
        book,
        bases,
        Keeper.under(settings.folder),
        settings.threads,
        models_max=settings.models_max,
        models_in_memory=settings.models_in_memory,
    )
    try:
        await _first(desk.open(), stop.wait())
        if stop.is_set():
            return
        door = ServiceDoor(
            desk,
            KeyDoor(KeyFile(settings.keys)),
            settings.poll_seconds,
            skip_unembed=settings.skip_unembed,
            full_weights=settings.full_weights,
            downloads=open_downloads(settings.folder, desk, write_saved),
        )
        runner = web.AppRunner(
            build_service(door, settings.body_bytes_max),
            access_log=None,
            handle_signals=False,
            auto_decompress=False,  # nothing is unpacked before it is known whose it is
            keepalive_timeout=IDLE_SECONDS,
            shutdown_timeout=GRACE_SECONDS,
        )
        await runner.setup()
        try:
            url = await _listen(runner, settings)
            listening(url, tuple(bases))
            await _work(desk, stop, beside(desk))
        finally:
            await runner.cleanup()
    finally:
        await desk.close()
        book.close()


def open_downloads(
    folder: Path, desk: TrainingDesk, write_saved: WriteSaved | None
) -> Downloads | None:
    """Where archives are made, empty; ``folder`` is the service's."""
    if write_saved is None:
        return None

    def write(saved: AnySaved, target: Path) -> None:
        base = desk.bases.get(saved.base)
        if base is None:
            raise SpecError(f"its base {saved.base} is not served; start with the same --train")
        write_saved(folder, base.folder, saved.id, target)

    downloads = Downloads(scratch=folder / DOWNLOADS, write=write, still=desk.shelf.still)
    downloads.clear()
    return downloads


def identify(settings: TrainingServiceSettings) -> dict[str, str]:
    """What must be the same for calls to come to the same numbers again."""
    apply_numerics(threads=settings.threads, exact=True)
    return dict(runtime_identity(world_size=1, device=CPU))


def note_bases(book: CallBook, targets: tuple[str, ...], bases: Mapping[str, TrainingBase]) -> None:
    """Write down where the bases are, so that the book can be read without its service. Raises LedgerError."""
    for name, uri in map(split_target, targets):
        digest = bases[name].digest
        place = ServedBase(id=base_id(name, digest), owner="", name=name, uri=uri, digest=digest)
        book.put(booked(place))


async def _work(desk: TrainingDesk, stop: asyncio.Event, beside: Mapping[str, Duty]) -> None:
    await _first(
        stop.wait(),
        keep_going("models", desk.compute_forever),
        keep_going("samplers", desk.sample_forever),
        keep_going("expiries", desk.shelf.tidy_forever),
        *(keep_going(name, duty) for name, duty in beside.items()),
    )


async def _first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Until the first of them ends; raises what it raised."""
    tasks = [asyncio.ensure_future(one) for one in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _listen(runner: web.AppRunner, settings: TrainingServiceSettings) -> str:
    site = web.TCPSite(runner, settings.host, settings.port, reuse_address=True)
    try:
        await site.start()
    except OSError as error:
        raise CoordinatorError(
            f"cannot listen on {settings.host}:{settings.port}: {error}; name another --port"
        ) from error
    host, port = runner.addresses[0][:2]
    return f"http://{host}:{port}"


def _check_names(full_weights: tuple[str, ...], bases: Mapping[str, TrainingBase]) -> None:
    for name in full_weights:
        if name not in bases:
            raise SpecError(
                f"--full-weights {name}: no --train has this name; there are {', '.join(bases)}"
            )


def _load_bases(targets: tuple[str, ...]) -> dict[str, TrainingBase]:
    if not 0 < len(targets) <= BASES_MAX:
        raise SpecError(f"--train: expected 1 to {BASES_MAX} models, got {len(targets)}")
    bases: dict[str, TrainingBase] = {}
    for target in targets:
        base = load_base(target)
        if base.name in bases:
            raise SpecError(f"--train: two models are named {base.name!r}; give one as NAME=MODEL")
        bases[base.name] = base
    return bases

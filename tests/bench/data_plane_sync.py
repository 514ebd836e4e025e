"""What a weight version costs a real vLLM server on a CPU, beside the bare calls it is made of.

One server, one model of 402 million random parameters in bfloat16. In every round, in turn: the bare
``reload_weights`` of the whole model, our load of the whole model, our load of a version that changed two
layers of 32, the bare control calls, and our load of a version that changed nothing. The pause window
is from the call of ``/pause`` to the answer of ``/resume``: hashing and asking for the digest are inside. The
control calls are the same four on both sides; an empty load has two more, and reads the file's header.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from figures import Figure, level, ratio

from rollout.engines.vllm.command import VllmSettings
from rollout.engines.vllm.engine import STOP_ALL, VllmEngine
from rollout.models.files import default_cache_dir
from rollout.models.resolve import resolve_model
from rollout.models.shapes import read_shape
from rollout.types import WeightVersion
from rollout.weights.digest import digest_tensors, load_weights, save_weights

MODEL = "rollout://tiny-qwen2?hidden=1024&layers=32"
ROUNDS = int(os.environ.get("ROLLOUT_BENCH_ROUNDS", "9"))
CHANGED_LAYERS = (".layers.3.", ".layers.19.")
SECONDS_MAX = 300.0
CONTROL = (
    ("/pause", STOP_ALL, None),
    ("/start_weight_update", None, None),
    ("/finish_weight_update", None, {}),
    ("/resume", None, None),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version in a folder of its own, as vLLM's loader wants it."""

    version: WeightVersion
    folder: Path

    @property
    def path(self) -> Path:
        """Its file."""
        return self.folder / "model.safetensors"


@dataclass(slots=True)
class Seconds:
    """By what was measured, one a round."""

    bare: list[float]
    whole: list[float]
    part: list[float]
    calls: list[float]
    control: list[float]
    nothing: list[float]


def measure() -> Iterator[Figure]:
    """Whole, partial and empty loads."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as name:
        found, share = asyncio.run(_measure(Path(name)))
    yield level("sync: bare reload_weights", found.bare, "s", "info")
    yield level("sync: pause window of a whole version", found.whole, "s", "info")
    yield ratio("sync: whole version / bare reload", found.bare, found.whole, "<= 1.15")
    yield level("sync: bytes of the changed modules", [100 * share], "%", "info")
    yield ratio("sync: changed modules / bare reload", found.bare, found.part, "<= 0.2")
    yield level("sync: pause, start, finish, resume", found.calls, "s", "info")
    yield ratio("sync: these calls in our load / bare", found.calls, found.control, "<= 1.3")
    yield ratio("sync: empty load / the bare calls", found.calls, found.nothing, "info")


async def _measure(folder: Path) -> tuple[Seconds, float]:
    model_dir = resolve_model(MODEL, cache_dir=folder / "models").path
    first, second, share = _versions(model_dir, folder)
    engine = VllmEngine(_settings(model_dir, folder))
    await engine.start()
    try:
        found = Seconds([], [], [], [], [], [])
        for number in range(ROUNDS + 1):
            await _round(engine, first, second, found)
            if not number:
                found = Seconds([], [], [], [], [], [])
        return found, share
    finally:
        await engine.stop()


async def _round(engine: VllmEngine, first: Version, second: Version, found: Seconds) -> None:
    changed = frozenset(load_names(second))
    found.bare.append(await _bare_reload(engine, first))
    found.whole.append((await _load(engine, first, None))[0])
    found.part.append((await _load(engine, second, changed))[0])
    found.calls.append(await _bare_calls(engine))
    start = time.perf_counter()
    _, control = await _load(engine, second, frozenset())
    found.nothing.append(time.perf_counter() - start)
    found.control.append(control)
    assert engine.version == second.version


def is_changed(name: str) -> bool:
    """Whether the second version changed this tensor."""
    return any(layer in name for layer in CHANGED_LAYERS)


def load_names(second: Version) -> list[str]:
    """Names of the tensors that the second version changed."""
    return list(filter(is_changed, load_weights(second.path)))


async def _load(
    engine: VllmEngine, one: Version, changed: frozenset[str] | None
) -> tuple[float, float]:
    """Seconds between the call of ``/pause`` and the answer of ``/resume``, and those of control calls."""
    server, marks, control = engine._server, [], []
    assert server is not None
    call = server.call

    async def marked(path: str, **rest):
        start = time.perf_counter()
        marks.append(start)
        answer = await call(path, **rest)
        marks.append(time.perf_counter())
        if path in {known for known, *_ in CONTROL}:
            control.append(time.perf_counter() - start)
        return answer

    server.call = marked
    try:
        assert await engine.load(one.version, one.path, changed) == one.version.digest
    finally:
        del server.call
    return max(marks) - marks[0], sum(control)


async def _bare_reload(engine: VllmEngine, one: Version) -> float:
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(one.folder)}}
    assert engine._server is not None
    return await _timed(engine._server.call("/collective_rpc", body=body, seconds_max=SECONDS_MAX))


async def _bare_calls(engine: VllmEngine) -> float:
    server = engine._server
    assert server is not None
    start = time.perf_counter()
    for path, parameters, body in CONTROL:
        await server.call(path, parameters=parameters, body=body, seconds_max=SECONDS_MAX)
    return time.perf_counter() - start


async def _timed(work: Awaitable[object]) -> float:
    start = time.perf_counter()
    await work
    return time.perf_counter() - start


def _versions(model_dir: Path, folder: Path) -> tuple[Version, Version, float]:
    """Two versions, and the share of bytes in the modules by which they differ."""
    tensors = {
        name: tensor.to(torch.bfloat16)
        for path in sorted(model_dir.glob("*.safetensors"))
        for name, tensor in load_weights(path).items()
    }
    new = {name: -one if is_changed(name) else one for name, one in tensors.items()}
    changed = sum(one.nbytes for name, one in tensors.items() if is_changed(name))
    total = sum(one.nbytes for one in tensors.values())
    return _save(tensors, 1, folder), _save(new, 2, folder), changed / total


def _save(tensors: dict[str, torch.Tensor], step: int, folder: Path) -> Version:
    place = folder / f"version-{step}"
    place.mkdir()
    one = Version(
        version=WeightVersion(lineage=0, step=step, digest=digest_tensors(tensors), object=""),
        folder=place,
    )
    save_weights(tensors, one.path)
    return one


def _settings(model_dir: Path, folder: Path) -> VllmSettings:
    return VllmSettings(
        model_dir=model_dir,
        log_path=folder / "vllm.log",
        dtype="bfloat16",
        max_model_length=512,
        vocab_size=read_shape(model_dir).vocab,
        exact=False,
        max_num_seqs=4,
        start_seconds_max=900.0,
        cache_dir=default_cache_dir() / "vllm",
    )

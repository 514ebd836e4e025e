"""Weight deltas: how small, how fast to find and encode, how fast to apply; and how dense real updates are.

Synthetic pairs: changes at random places with random new values, the worst case for both streams. Speed is
held against a copy of the same bytes, measured in turn with it. Real pairs: successive versions of a small
GRPO run in bf16, at several learning rates.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from figures import Figure, level, ratio

from rollout.objects.filesystem import FilesystemStore
from rollout.weights.delta import apply_delta, encode_delta
from rollout.weights.raw import open_raw

Versions = dict[str, np.ndarray]

SIZES = (16 << 20, 8 << 20, 8 << 20, 4 << 20, 1 << 20, *(1 << 18,) * 12, *(1 << 10,) * 24)
"""Elements of a model's tensors: embeddings, projections, norms; 40 million."""
REPEATS = 9
BASES = ("blake3:0",)
STEPS = 8
RATES = ("1e-3", "1e-4", "1e-5", "1e-6")
RUN_SECONDS_MAX = 600

MANIFEST = """
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {{name: density}}
spec:
  numerics: {{mode: Fast}}
  model: {{uri: "rollout://tiny-adder", dtype: BFloat16}}
  train:
    algorithm: {{grpo: {{promptsPerStep: 16, groupSize: 8}}}}
    environment: {{builtin: {{name: arithmetic}}}}
    rewards: [{{builtin: {{name: exact-match}}}}]
    optimizer: {{adamw: {{learningRate: "{rate}"}}}}
    maxSteps: {steps}
  snapshots: {{everySteps: 1, keepLast: 100}}
"""


def measure() -> Iterator[Figure]:
    """Sizes, then speeds, then the densities of real runs."""
    yield from _sizes()
    yield from _speeds()
    yield from _densities()


def _sizes() -> Iterator[Figure]:
    for dtype, width in (("bf16", np.uint16), ("fp32", np.uint32)):
        for share in (0.001, 0.01, 0.05, 0.25):
            old, new = _pair(width, share)
            bar = ">= 50" if share == 0.01 else "info"
            yield level(
                f"delta: {dtype}, {share:.1%} changed, times smaller", [_shrink(old, new)], "x", bar
            )
        for share in (0.36, 1.0):
            old, new = _pair(width, share)
            yield level(
                f"delta: {dtype}, {share:.0%} changed, of the raw size",
                [1 / _shrink(old, new)],
                "x",
                "<= 1.01",
            )


def _speeds() -> Iterator[Figure]:
    old, new = _pair(np.uint16, 0.01)
    gigabytes = _bytes(new) / 1e9
    data = memoryview(b"".join(encode_delta(old, new, BASES)))
    mirror = {name: bits.copy() for name, bits in old.items()}
    target = {name: np.empty_like(bits) for name, bits in new.items()}
    encode, processor, apply, copy = [], [], [], []
    for _ in range(REPEATS):
        before = time.process_time()
        encode.append(_seconds(lambda: encode_delta(old, new, BASES)))
        processor.append(time.process_time() - before)
        copy.append(_seconds(lambda: _copy(new, target)))
        apply.append(_seconds(lambda: apply_delta(mirror, data)))
    yield level(
        "delta: scan and encode, bf16, 1 %", [s / gigabytes for s in encode], "s/GB", "<= 0.8"
    )
    spent = [s / gigabytes for s in processor]
    yield level("delta: scan and encode, processor time", spent, "s/GB", "info")
    yield level("delta: copy of the same bytes", [s / gigabytes for s in copy], "s/GB", "info")
    yield ratio("delta: apply against a copy", copy, apply, "<= 1.5")


def _densities() -> Iterator[Figure]:
    for rate in RATES:
        shares, factors = _real_run(rate)
        yield level(f"real run, bf16, rate {rate}: changed a step", shares, "%", "info")
        yield level(f"real run, bf16, rate {rate}: times smaller", factors, "x", "info")


def _real_run(rate: str) -> tuple[list[float], list[float]]:
    """Per step: percent of changed elements, and dense bytes over delta bytes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "run.yaml").write_text(MANIFEST.format(rate=rate, steps=STEPS))
        command = [sys.executable, "-m", "rollout", "run", "-f", str(folder / "run.yaml")]
        environment = {**os.environ, "ROLLOUT_HOME": str(folder / "runs")}
        subprocess.run(
            command, env=environment, check=True, timeout=RUN_SECONDS_MAX, capture_output=True
        )
        run = folder / "runs" / "density-1"
        store = FilesystemStore(run / "objects")
        found = [json.loads(path.read_text()) for path in sorted(run.glob("snapshots/step-*.json"))]
        paths = [store.path(one["version"]["object"]) for one in found]
        pairs = [_compare(old, new) for old, new in pairwise(paths)]
    return [share for share, _ in pairs], [factor for _, factor in pairs]


def _compare(old_path: Path, new_path: Path) -> tuple[float, float]:
    with open_raw(old_path) as old, open_raw(new_path) as new:
        changed = sum(int((old[name] != new[name]).sum()) for name in new)
        total = sum(bits.size for bits in new.values())
        return 100 * changed / total, _shrink(old, new)


def _pair(width: type, share: float) -> tuple[Versions, Versions]:
    rng = np.random.default_rng(0)
    old = {f"t{i:02}": _numbers(rng, size, width) for i, size in enumerate(SIZES)}
    new = {name: bits.copy() for name, bits in old.items()}
    for bits in new.values():
        places = np.flatnonzero(rng.random(bits.size, np.float32) < share)
        bits[places] = _numbers(rng, places.size, width)
    return old, new


def _numbers(rng: np.random.Generator, size: int, width: type) -> np.ndarray:
    """Raw bits of normal numbers of a weight's size; bf16 is the upper half of fp32."""
    bits = (rng.standard_normal(size, dtype=np.float32) * np.float32(0.02)).view(np.uint32)
    return bits if width is np.uint32 else (bits >> 16).astype(np.uint16)


def _shrink(old: Versions, new: Versions) -> float:
    return _bytes(new) / sum(map(len, encode_delta(old, new, BASES)))


def _bytes(tensors: Versions) -> int:
    return sum(bits.nbytes for bits in tensors.values())


def _copy(source: Versions, target: Versions) -> None:
    for name, bits in source.items():
        np.copyto(target[name], bits)


def _seconds(act) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start

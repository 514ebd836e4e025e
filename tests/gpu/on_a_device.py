"""``make gpu``: all that needs a CUDA device, as commands of a few minutes each; one that was cut is taken up again.

What a command found is in ``build/bench/gpu-<name>.json`` and its words in ``build/gpu/<name>.log``; one that has
its file is not run again (``--fresh`` runs all). At the end ``build/bench/gpu.json`` holds all figures.
``ROLLOUT_GPU_REHEARSAL=1`` runs the measurements without a device, tiny, to see that they run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOUND, LOGS = ROOT / "build" / "bench", ROOT / "build" / "gpu"
SECONDS_MAX = 480
BENCHES = (
    "attention",
    "head",
    "digest",
    "sync",
    "decode",
    "mfu",
    "sft-phases",
    "sft",
    "grpo",
    "grpo-fast",
)
SOURCES = ("crds/src", "workers/src")


def main(arguments: Sequence[str]) -> int:
    """Run what has not been run; 1 where something failed."""
    fresh = "--fresh" in arguments
    wanted = [name for name in arguments if not name.startswith("-")] or ["tests", *BENCHES]
    LOGS.mkdir(parents=True, exist_ok=True)
    failed = [name for name in wanted if not _had(name, fresh=fresh) and not _run(name)]
    _gather()
    if failed:
        print(f"failed: {', '.join(failed)}; see {LOGS.relative_to(ROOT)}", flush=True)
    return int(bool(failed))


def _had(name: str, *, fresh: bool) -> bool:
    return not fresh and _file(name).exists()


def _file(name: str) -> Path:
    return FOUND / f"gpu-{name}.json"


def _run(name: str) -> bool:
    began = time.monotonic()
    print(f"== {name}", flush=True)
    log = LOGS / f"{name}.log"
    with log.open("w") as file:
        code = _wait(
            subprocess.Popen(_command(name), cwd=ROOT, env=_environment(), stdout=file, stderr=file)
        )
    print("\n".join(log.read_text(errors="replace").splitlines()[-40:]), flush=True)
    print(f"-- {name}: {code} after {time.monotonic() - began:.0f} s", flush=True)
    if name == "tests" and code == 0:
        FOUND.mkdir(parents=True, exist_ok=True)
        _file(name).write_text("[]\n")
    if code:
        _file(name).unlink(missing_ok=True)
    return code == 0


def _wait(process: subprocess.Popen) -> int:
    try:
        return process.wait(SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return 124


def _command(name: str) -> list[str]:
    if name == "tests":
        return [sys.executable, "-m", "pytest", "-q", "--maxfail=10", "-n", "4", "tests/gpu"]
    return [sys.executable, "tests/bench/run.py", "gpu", name]


def _environment() -> dict[str, str]:
    path = os.pathsep.join(
        [*(str(ROOT / one) for one in SOURCES), os.environ.get("PYTHONPATH", "")]
    )
    threads = str(min(16, os.cpu_count() or 1))
    return {**os.environ, "PYTHONPATH": path, "BENCH_THREADS": threads, "OMP_NUM_THREADS": threads}


def _gather() -> None:
    found = {
        path.stem.removeprefix("gpu-"): json.loads(path.read_text())
        for path in FOUND.glob("gpu-*.json")
    }
    kept = {name: rows for name, rows in found.items() if not name.endswith(".raw")}
    FOUND.mkdir(parents=True, exist_ok=True)
    (FOUND / "gpu.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

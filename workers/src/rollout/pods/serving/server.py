"""One server of an endpoint, from its order: the model found, engine and gateway started, kept alive, drained at the end.

The container ends with an error where the model cannot be had, a key is none or the engine cannot live; the kubelet starts
it again, and the operator gives the revision up when that goes on for too long.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path

from rollout.errors import SpecError
from rollout.inference.gateway.keys import KeyFile
from rollout.models.packed import parse_packed
from rollout.models.resolve import resolve_model
from rollout.pods.serving.following import FollowedRun
from rollout.pods.serving.keys import MountedKeys
from rollout.pods.serving.log_files import LogFiles
from rollout.pods.serving.snapshot import unfold_snapshot
from rollout.runs.model_transfer import fetch_packed
from rollout.serving.engines import EngineChoice
from rollout.serving.session import ServeOptions, ServingSession
from rollout.serving.targets import ServeTarget
from rollout_api.serving import VARIABLE, ServeOrder
from rollout_api.v1alpha1.storage import Storage

START_SECONDS_MAX = 24 * 3600.0
"""Of engines: whether that is too long is the operator's to say."""
KEYS_SECONDS = 1.0
STDOUT = 1


def read_serve_order() -> ServeOrder:
    """What the operator wrote into our environment. Raises SpecError."""
    try:
        return ServeOrder.model_validate_json(os.environ.get(VARIABLE, ""))
    except ValueError as error:
        raise SpecError(f"{VARIABLE} holds no order: {error}") from error


def place_model(order: ServeOrder) -> None:
    """Bring the model into the cache, for a container that only reads it. Raises ModelNotFound, StoreError."""
    if _take_packed(order) is None:
        resolve_model(order.uri, revision=order.revision)


def build_target(order: ServeOrder) -> ServeTarget:
    """What is served; what lies in a bucket is on this machine then. Raises ModelNotFound, StoreError, SnapshotRefused."""
    snapshot, live = order.snapshot, order.live
    if live is not None:
        base = resolve_model(order.uri, revision=order.revision)
        scratch = Path(order.work_dir) / "live"
        feed = FollowedRun(live, order.storage or Storage(), base.path, scratch)
        return ServeTarget(text=f"{live.name}@live", name=order.name, feed=feed)
    if snapshot is not None:
        base = resolve_model(order.uri, revision=order.revision)
        folder = Path(tempfile.gettempdir()) / f"snapshot-{snapshot.snapshot}"
        scratch = Path(order.work_dir) / "snapshot"
        unfolded = unfold_snapshot(snapshot, base, scratch, folder)
        return _from_folder(order, unfolded, f"blake3:{snapshot.snapshot}")
    named = ServeTarget(text=order.uri, name=order.name, uri=order.uri, revision=order.revision)
    return _take_packed(order) or named


def _take_packed(order: ServeOrder) -> ServeTarget | None:
    """The model that a run has handed on; None where another one is served."""
    packed = parse_packed(order.uri) if order.storage is not None else None
    if packed is None or order.storage is None:
        return None
    folder = fetch_packed(order.storage, packed, Path(order.work_dir) / "packed")
    return _from_folder(order, folder, packed.digest)


def _from_folder(order: ServeOrder, folder: Path, digest: str) -> ServeTarget:
    return ServeTarget(text=order.uri, name=order.name, uri=f"file://{folder}", digest=digest)


def serve(order: ServeOrder, engine: Path | None, told: threading.Event) -> None:
    """Serve until ``told``, then drain. ``engine``: shared with the container of a vLLM server. Raises RolloutError."""
    options = build_options(order, engine)
    options.logs.mkdir(parents=True, exist_ok=True)
    mounted = MountedKeys(Path(order.keys_dir), order.keys, KeyFile(options.keys))
    mounted.begin(time.time())
    logs = LogFiles(options.logs, STDOUT)
    looked_at = 0.0

    def tend() -> None:
        nonlocal looked_at
        logs.pass_on()
        if time.monotonic() - looked_at > KEYS_SECONDS:
            looked_at = time.monotonic()
            mounted.refresh(time.time())

    def is_told() -> bool:
        tend()
        return told.is_set()

    try:
        with ServingSession(options) as session:
            session.start(is_told)
            session.run(told.is_set, tend)
            session.drain(_never)
    except KeyboardInterrupt:
        return  # told to end while it started
    finally:
        logs.pass_on()


def _never() -> bool:
    return False


def build_options(order: ServeOrder, engine: Path | None) -> ServeOptions:
    """What a session is told. Raises ModelNotFound, StoreError, SnapshotRefused."""
    work = Path(order.work_dir)
    return ServeOptions(
        targets=(build_target(order),),
        engine=build_choice(order, engine),
        host="0.0.0.0",  # noqa: S104 - clients come to the pod's address
        port=order.port,
        tls_port=order.tls_port or 0,
        tls=Path(order.tls_dir) if order.tls_dir else None,
        keys=work / "keys",
        logs=work / "logs",
        drain_seconds=order.drain_seconds,
        leave_seconds=order.leave_seconds,
        request_seconds=order.request_seconds,
        start_seconds=START_SECONDS_MAX,
        canary=Path(order.canary_file) if order.canary_file else None,
        asks_for_keys=bool(order.keys),
        makes_key=False,
    )


def build_choice(order: ServeOrder, engine: Path | None) -> EngineChoice:
    """The engine of an order."""
    vllm = order.engine.vllm
    if vllm is None:
        embedded = order.engine.embedded
        assert embedded is not None, "an engine is one of two"
        return EngineChoice(threads=order.threads, max_num_seqs=embedded.max_num_seqs)
    return EngineChoice(
        kind="vllm",
        threads=order.threads,
        device="cuda" if order.on_accelerator else "cpu",
        max_num_seqs=vllm.max_num_seqs,
        max_model_length=vllm.max_model_length,
        vllm_arguments=tuple(
            f"--{one.name}={one.value}" if one.value else f"--{one.name}"
            for one in vllm.extra_arguments
        ),
        tensor_parallel=vllm.tensor_parallel,
        memory_fraction=vllm.gpu_memory_utilization or 0.9,
        beside=engine,
    )

"""Tells the coordinator the end of what a pod has written, masked, so that it outlives the pod.

Every few seconds while there is something new, when the pod is told to go, and when its work has ended badly. A
coordinator that does not answer is not waited for: whatever the work says is more than what is said of it.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from rollout.errors import RolloutError
from rollout.objects.filesystem import write_atomically
from rollout.pods.output_tail import OutputTail
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.client import CoordinatorClient
from rollout_api.fields.credentials import mask
from rollout_api.worker import WorkerOrder

log = logging.getLogger(__name__)

EVERY_SECONDS = 15.0
SECONDS_MAX: dict[m.EvidenceMoment, float] = {"running": 0.0, "told": 1.0}
"""How long work waits for its own telling; what has ended waits longer."""
LAST_SECONDS_MAX = 5.0
PATIENCE_SECONDS = 3.0
FOLDER, FILES_MAX = "evidence", 20

Send = Callable[[m.Evidence], None]


class Telling:
    """One start of a pod. ``send`` None: nobody is told, and the output passes on all the same."""

    def __init__(self, send: Send | None = None, hide: Callable[[str], str] = str) -> None:
        self.tail = OutputTail()
        self._send, self._hide = send, hide
        self._start = secrets.token_hex(16)
        self._told_at, self._told_bytes = time.monotonic(), 0
        self._at_work: threading.Thread | None = None

    def say(self, moment: m.EvidenceMoment) -> None:
        """Tell of this moment; of work that goes on not too often. Never raises, and returns within seconds."""
        if self._send is None or (moment == "running" and not self._is_due()):
            return
        seconds_max = SECONDS_MAX.get(moment, LAST_SECONDS_MAX)
        if self._at_work is not None:
            self._at_work.join(seconds_max)
            if self._at_work.is_alive():
                return
        self._told_at, self._told_bytes = time.monotonic(), self.tail.num_bytes
        text = (
            ""
            if moment == "clean"
            else last_bytes(self._hide(self.tail.text(m.EVIDENCE_BYTES_MAX)))
        )
        evidence = m.Evidence(start=self._start, moment=moment, text=text)
        self._at_work = threading.Thread(
            target=_attempt, args=(self._send, evidence), daemon=True, name="telling"
        )
        self._at_work.start()
        self._at_work.join(seconds_max)

    def _is_due(self) -> bool:
        new = self.tail.num_bytes != self._told_bytes
        return new and time.monotonic() - self._told_at >= EVERY_SECONDS


def last_bytes(text: str, size_max: int = m.EVIDENCE_BYTES_MAX) -> str:
    """The end of a text in so many bytes of UTF-8."""
    return text.encode(errors="replace")[-size_max:].decode(errors="ignore")


def build_telling(
    role: str, name: str, order: WorkerOrder, environment: Mapping[str, str]
) -> Telling:
    """How a pod of this role tells: the coordinator, or, being its pod, the run's folder."""
    places = (order.spec, order.spec.actors, order.spec.learner)
    also = {one.name for place in places for one in place.env if one.secret is not None}

    def hide(text: str) -> str:
        token = {"TOKEN": _read(Path(order.layout.token_file))}
        return mask(mask(text, environment, also), token)

    if role == "coordinator":
        return Telling(
            lambda said: keep_file(Path(order.layout.run_dir) / FOLDER, name, said), hide
        )
    return Telling(lambda said: _call(role, name, order, said), hide)


def keep_file(folder: Path, name: str, said: m.Evidence) -> None:
    """Keep the tail of a start as a file; those of good ends are removed, and so many are kept in all."""
    file = folder / f"{name}-{said.start[:8]}.txt"
    if said.moment in {"left", "clean"}:
        file.unlink(missing_ok=True)
        return
    folder.mkdir(parents=True, exist_ok=True)
    if file.exists() or len(list(folder.iterdir())) < FILES_MAX:
        write_atomically(file, said.text.encode(errors="replace"))


def _call(role: str, name: str, order: WorkerOrder, said: m.Evidence) -> None:
    route = routes.ACTOR_EVIDENCE if role == "actor" else routes.LEARNER_EVIDENCE
    client = CoordinatorClient.open(order, route.role, patience_seconds=PATIENCE_SECONDS)
    try:
        client.as_worker(name).call(route, said)
    finally:
        client.close()


def _attempt(send: Send, said: m.Evidence) -> None:
    try:
        send(said)
    except (RolloutError, OSError) as error:
        log.info("nobody was told how this pod stands moment=%s error=%s", said.moment, error)


def _read(path: Path) -> str:
    with suppress(OSError, ValueError):
        return path.read_text().strip()
    return ""

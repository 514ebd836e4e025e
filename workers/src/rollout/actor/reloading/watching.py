"""What tasks are played and scored with while the files of plugins change: one version for all that an actor has claimed.

A changed version comes up beside the one before, in a thread; the actor takes it between two claims, when nothing is in
play. One that does not come up, or is another plugin, changes nothing. Those before stay until it has proven itself: where
groups fail with it, they are played again with the version before, which is taken back.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rollout.actor.reloading.rules import (
    SAME_AGAIN,
    Digests,
    Looks,
    Manifests,
    VersionStanding,
    describe_refusal,
    describe_turn,
    find_refusal,
    spare,
)
from rollout.actor.reloading.versions import BEGUN, PluginVersions
from rollout.actor.task_scoring import TRAINING, TaskScoring, build_task_scoring
from rollout.environments.with_tools import ToolBuilder
from rollout.errors import RolloutError, SpecError
from rollout.plugins.author import code_folders
from rollout.plugins.sidecar.client import PluginClient
from rollout.plugins.sidecar.kinds.environment import SidecarBuilder
from rollout.plugins.sidecar.kinds.tool import PluginToolSource
from rollout.plugins.sidecar.lock import LOCK
from rollout.plugins.sidecar.manifest import PluginFolder
from rollout.plugins.sidecar.named import find_plugin_files, plugin_digests, require_reloadable
from rollout.plugins.sidecar.stamps import Stamp, look_at, stamp_of
from rollout.protocol.messages import Task, TaskResult
from rollout.rewards.pipeline import RewardPipeline
from rollout.seams import EnvBuilder
from rollout_api.worker import WorkerConfig

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Between two looks at the files; what has changed is taken once two in a row have found the same."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlayedVersion:
    """What some tasks are played and scored with. ``kept`` are the folders that its plugins run in."""

    scoring: TaskScoring
    digests: Digests
    manifests: Manifests
    kept: Sequence[Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Playing:
    """The version in play, how it does, and those that may be taken back: the first one, and the last that did well."""

    now: PlayedVersion
    standing: VersionStanding
    before: tuple[PlayedVersion, ...] = ()

    @property
    def versions(self) -> tuple[PlayedVersion, ...]:
        """All that have processes."""
        return (self.now, *self.before)

    def turn_to(self, ready: PlayedVersion | None) -> Playing:
        """What is played from now on: what has come up, else what was played before."""
        before = self.before
        if self.standing.is_proven and not self.standing.broken:
            before = (*before[:1], self.now)
        if ready is not None:
            return Playing(now=ready, standing=VersionStanding(), before=before)
        return Playing(now=before[-1], standing=VersionStanding(is_proven=True), before=before[:-1])


class PluginReloads:
    """The plugins of one actor. ``start`` before use, ``close`` after; ``watch`` beside the work, ``take`` between claims.

    ``look`` runs in a thread, alone; all else in the thread of the work.
    """

    def __init__(self, config: WorkerConfig, place: Path) -> None:
        """Raises SpecError for a run whose plugins may not change."""
        if config.authentication is not None:
            raise SpecError("--reload-plugins: not in a cluster: run it on one machine")
        require_reloadable(config.spec)
        self._config, self._place = config, place
        self._versions = PluginVersions(place)
        self._lock = threading.Lock()
        self._looks = Looks()
        self._playing: Playing | None = None
        self._ready: PlayedVersion | None = None
        self._over: queue.SimpleQueue[PlayedVersion] = queue.SimpleQueue()
        self._good: Digests = {}
        self._closed = False
        self.note = ""
        """What was said last of a change, for people."""

    @property
    def digests(self) -> Digests:
        """Of the files that episodes are played with now."""
        return self._now.digests

    def environment(self, task: Task) -> EnvBuilder:
        """Where the task is played."""
        return self._now.scoring.environment(task)

    def pipeline(self, task: Task) -> RewardPipeline:
        """What scores the task."""
        return self._now.scoring.pipeline(task)

    @property
    def _now(self) -> PlayedVersion:
        assert self._playing is not None, "start comes first"
        return self._playing.now

    def start(self) -> None:
        """Begin with the last version that did well here, else with what the run began with. Raises SpecError."""
        with self._lock:
            files = self._versions.recall()
            self._good = {path: one.digest for path, one in files.items()}
            if not files:
                self._versions.leave(())
                files = PluginVersions(self._place.parent / BEGUN).recall()
            if not files:
                raise SpecError(
                    f"{self._place.parent / BEGUN}: the plugins that the run began with are not there, or are damaged:"
                    " start another run"
                )
            now = self._build(None, files)
            self._playing = Playing(now=now, standing=VersionStanding(is_proven=True))

    def close(self) -> None:
        """End all processes; what they ran in goes, but for what the next process begins with; idempotent."""
        self._closed = True
        with self._lock:
            self._end_over(())
            ready, self._ready = self._ready, None
            if self._playing is None:
                return
            for one in (*self._playing.versions, *([] if ready is None else [ready])):
                _end(one, ())
            self._versions.leave(self._remembered())

    async def watch(self) -> None:
        """Look at the files for ever."""
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(LOOK_SECONDS)

    def judge(self, results: Sequence[TaskResult]) -> list[TaskResult]:
        """The results of groups; those that a version has failed at which will be taken back spend no try."""
        playing = self._playing
        assert playing is not None
        if not playing.before:
            self._remember(playing)
            return list(results)
        judged: list[TaskResult] = []
        for result in results:
            playing = replace(playing, standing=playing.standing.see(result))
            judged.append(spare(result) if playing.standing.broken else result)
        self._playing = playing
        self._remember(playing)
        return judged

    def take(self) -> None:
        """Play what is begun from now on with the version that has come up, or was before; call while nothing is in play."""
        ready, playing = self._ready, self._playing
        assert playing is not None
        broken = playing.standing.broken
        if ready is None and not broken:
            self._playing = replace(playing, standing=playing.standing.begin_claim())
            return
        after = playing.turn_to(ready)
        self._playing, self._ready = after, None
        for one in playing.versions:
            if one not in after.versions:
                self._over.put(one)
        told = (playing.now.digests, after.now.digests, after.now.manifests)
        self._say(describe_turn(*told, why=broken))

    def look(self) -> None:
        """End what is played no more; bring up what has been changed, unless something waits to be taken already."""
        with self._lock:
            if self._closed or self._playing is None:
                return
            ready = self._ready  # first: it is what is played next
            playing = self._playing
            self._end_over((*playing.versions, *([] if ready is None else [ready])))
            if ready is not None:
                return
            try:
                self._versions.leave(
                    [*self._remembered(), *(kept for one in playing.versions for kept in one.kept)]
                )
                self._look(playing)
            except (RolloutError, OSError) as error:
                self._looks = self._looks.fail()
                copy = rf"{re.escape(str(self._place))}/[0-9a-f]+/"
                self._say(describe_refusal(re.sub(copy, "", str(error))))

    def _remember(self, playing: Playing) -> None:
        good = playing.now.digests
        if good == self._good or playing.standing.broken or not playing.standing.is_proven:
            return
        try:
            self._versions.remember(good)
            self._good = good
        except OSError as error:
            log.warning("plugins: what did well is not remembered for the next process: %s", error)

    def _remembered(self) -> list[Path]:
        return [self._versions.folder(*one) for one in self._good.items()]

    def _end_over(self, others: Sequence[PlayedVersion]) -> None:
        while not self._over.empty():
            _end(self._over.get(), others)

    def _look(self, playing: Playing) -> None:
        played = playing.now
        stamp, wrong = self._see()
        self._looks, tries = self._looks.see(stamp)
        if not tries:
            return
        if wrong is not None:
            raise wrong
        spec, folders = self._config.spec, code_folders(self._config)
        digests = plugin_digests(spec, folders)
        if digests == played.digests:
            self._say(SAME_AGAIN if self.note else "")
            return
        files = find_plugin_files(spec, folders)
        manifests = {path: one.manifest for path, one in files.items()}
        if why := find_refusal(played.manifests, manifests):
            raise SpecError(why)
        self._ready = self._build(played, files)

    def _see(self) -> tuple[Stamp, SpecError | None]:
        """What lies there, and why it is no plugin: half of what is written is not told of until it stays so."""
        try:
            files = find_plugin_files(self._config.spec, code_folders(self._config))
        except SpecError as error:
            return frozenset({(str(error), 0, 0)}), error
        locks = (look_at(folder / LOCK) for folder in code_folders(self._config))
        return _stamp(files).union(*locks), None

    def _build(
        self, before: PlayedVersion | None, files: Mapping[str, PluginFolder]
    ) -> PlayedVersion:
        """A version that has come up. Raises SpecError, OSError; nothing of it is left then."""
        digests = {path: one.digest for path, one in files.items()}
        kept = [self._versions.keep(path, files[path], one) for path, one in digests.items()]
        made = build_task_scoring(self._config, kept)
        version = PlayedVersion(
            scoring=made if before is None else _share(self._config, before, made, digests),
            digests=digests,
            manifests={path: one.manifest for path, one in files.items()},
            kept=kept,
        )
        try:
            version.scoring.start()
            for client in plugin_clients(version.scoring.environments.get(TRAINING)):
                client.start()
        except BaseException:
            _end(version, () if before is None else (before,))
            raise
        return version

    def _say(self, text: str) -> None:
        if text and text != self.note:
            log.warning("%s", text)
            self.note = text


def _share(
    config: WorkerConfig, before: PlayedVersion, made: TaskScoring, digests: Digests
) -> TaskScoring:
    """What has not changed goes on in the processes that it has."""
    for key, pipeline in made.pipelines.items():
        pipeline.share(before.scoring.pipelines[key])
    train = config.spec.train
    environment = None if train is None else train.environment
    named = [] if environment is None else [environment.plugin, *environment.tool_plugins]
    paths = [one.path for one in named if one is not None and one.path is not None]
    if any(before.digests.get(path) != digests[path] for path in paths):
        return made
    for one in made.environments.values():
        _end_clients(one)
    return TaskScoring(environments=before.scoring.environments, pipelines=made.pipelines)


def plugin_clients(builder: EnvBuilder | None) -> Iterator[PluginClient]:
    """Those that play in an environment: its own plugin's, and those of its tools."""
    if isinstance(builder, ToolBuilder):
        yield from plugin_clients(builder.inner)
        yield from (one.client for one in builder.sources if isinstance(one, PluginToolSource))
    elif isinstance(builder, SidecarBuilder):
        yield builder.client


def _end(version: PlayedVersion, others: Sequence[PlayedVersion]) -> None:
    """End what no other shares."""
    pipelines = [pipeline for one in others for pipeline in one.scoring.pipelines.values()]
    for pipeline in version.scoring.pipelines.values():
        pipeline.close(pipelines)
    environments = [one for other in others for one in other.scoring.environments.values()]
    for one in version.scoring.environments.values():
        if not any(one is other for other in environments):
            _end_clients(one)


def _end_clients(builder: EnvBuilder) -> None:
    for client in plugin_clients(builder):
        client.close()


def _stamp(files: Mapping[str, PluginFolder]) -> Stamp:
    return frozenset(seen for one in files.values() for seen in stamp_of(one.folder))

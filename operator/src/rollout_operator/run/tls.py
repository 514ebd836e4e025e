"""Keeps each run's certificate: made once, renewed in time, made anew when somebody deletes it.

Secrets are never listed nor watched. That one is gone is learnt from the garbage collector: the ConfigMap
with the token keys names the Secret as a second owner, and loses that reference as soon as the Secret goes.
That one has come is learnt by asking for it: whoever believes that it leads may have made it again.
"""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rollout_api import GROUP, names
from rollout_operator.controller.clocks import CLOCKS, Clocks
from rollout_operator.controller.times import read_time, render_time
from rollout_operator.errors import Conflict, FieldConflict, NotFound
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.managed_fields import controller_uid
from rollout_operator.kube.resources import SECRETS
from rollout_operator.run.certificate import Issued, issue, must_renew, renew
from rollout_operator.run.permitted import check_permitted
from rollout_operator.run.plan.model import Observed
from rollout_operator.run.render.inputs import Manifest, plain_meta

SOUGHT_MAX = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A Secret that was there, and when its certificate ends."""

    uid: str
    not_after: datetime


async def unasked() -> None:
    """Whoever makes it knows the run."""


@dataclass(slots=True, kw_only=True)
class Authorities:
    """Remembers the Secret of each run, and when that of a finished run was looked for."""

    client: KubeClient
    clocks: Clocks = CLOCKS
    _known: dict[str, Known] = field(default_factory=dict)
    _sought: OrderedDict[str, datetime] = field(default_factory=OrderedDict)

    async def ensure(
        self,
        observed: Observed,
        now: datetime,
        *,
        is_new: bool,
        doubted: bool,
        confirm: Callable[[], Awaitable[None]] = unasked,
    ) -> str:
        """See that the Secret is there and valid; its UID.

        ``is_new``: nothing of the run exists yet. ``doubted``: look, whatever is remembered. ``confirm`` raises when the run
        has gone on, and is called before one is made.
        """
        known = None if doubted else self._known.get(observed.uid)
        if known is None and not is_new:
            known = await self._find(observed)
        if known is None:
            await confirm()
            known = await self._issue(observed, now)
        elif must_renew(known.not_after, now):
            known = await self._renew(observed, now)
        self._known[observed.uid] = known
        return known.uid

    async def remove(self, observed: Observed) -> None:
        """Delete the Secret, when it is the run's."""
        sought = self.clocks.now()
        self._known.pop(observed.uid, None)
        await self._delete(observed)
        self._sought[observed.uid] = sought
        self._sought.move_to_end(observed.uid)
        while len(self._sought) > SOUGHT_MAX:
            self._sought.popitem(last=False)

    def sought(self, uid: str) -> datetime | None:
        """When ``remove`` last looked for the Secret of a run; None: not as far as this process remembers."""
        return self._sought.get(uid)

    async def _delete(self, observed: Observed) -> None:
        name = names.certificate_name(observed.name)
        try:
            found = await self.client.get(SECRETS, observed.namespace, name, metadata_only=True)
        except NotFound:
            return
        meta = found["metadata"]
        if not _is_runs(meta, observed):
            return
        await self.client.delete(
            SECRETS,
            observed.namespace,
            name,
            uid=meta["uid"],
            resource_version=meta["resourceVersion"],
        )

    def forget(self, uid: str) -> None:
        """The run is gone."""
        self._known.pop(uid, None)
        self._sought.pop(uid, None)

    async def _issue(self, observed: Observed, now: datetime) -> Known:
        """Make the Secret; one that is there already, and ours, is never replaced."""
        issued = issue(observed.name, observed.namespace, now)
        secret = build_secret(observed, issued)
        check_permitted(secret, observed.permit())
        try:
            made = await self.client.create(secret, SECRETS, manager=names.MANAGER_CHILDREN)
        except Conflict:
            if (found := await self._find(observed)) is None:
                raise
            return found
        return Known(uid=made["metadata"]["uid"], not_after=issued.not_after)

    async def _find(self, observed: Observed) -> Known | None:
        name = names.certificate_name(observed.name)
        try:
            live = await self.client.get(SECRETS, observed.namespace, name, metadata_only=True)
        except NotFound:
            return None
        meta = live["metadata"]
        if not _is_runs(meta, observed):
            raise FieldConflict(f"Secret {name} exists and is not this RolloutRun's", 30.0)
        annotations = meta.get("annotations") or {}
        not_after = read_time(annotations.get(names.ANNOTATION_NOT_AFTER, ""))
        if not_after is None:
            raise _spoiled(name, f"its annotation {names.ANNOTATION_NOT_AFTER} is no time")
        return Known(uid=meta["uid"], not_after=not_after)

    async def _renew(self, observed: Observed, now: datetime) -> Known:
        name = names.certificate_name(observed.name)
        live = await self.client.get(SECRETS, observed.namespace, name)
        try:
            data = live.get("data") or {}
            files = {key: base64.b64decode(text).decode() for key, text in data.items()}
            issued = renew(observed.name, observed.namespace, now, files)
        except (KeyError, TypeError, ValueError) as error:
            raise _spoiled(name, f"a certificate cannot be renewed with it: {error}") from error
        manifest = build_secret(observed, issued)
        meta = live["metadata"]
        manifest["metadata"] |= {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
        check_permitted(manifest, observed.permit())
        await self.client.apply(manifest, SECRETS, manager=names.MANAGER_CHILDREN, force=True)
        return Known(uid=meta["uid"], not_after=issued.not_after)


def build_secret(observed: Observed, issued: Issued) -> Manifest:
    """The Secret of a run, with the end of its certificate beside it."""
    name = names.certificate_name(observed.name)
    meta = plain_meta(observed.name, observed.namespace, observed.uid, name)
    meta["annotations"] = {names.ANNOTATION_NOT_AFTER: render_time(issued.not_after)}
    data = {key: base64.b64encode(text.encode()).decode() for key, text in issued.files.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": meta,
        "data": data,
    }


def _spoiled(name: str, why: str) -> FieldConflict:
    """Somebody has written into the run's Secret, which people of its namespace may."""
    return FieldConflict(
        f"Secret {name} was changed: {why}; delete it, and it is created again", 30.0
    )


def _is_runs(meta: Mapping[str, Any], observed: Observed) -> bool:
    return controller_uid(meta, GROUP, "RolloutRun") == observed.uid

"""What calls refer to: sessions, models, samplers and saved weights, by their ids, each seen by its owner only.

Everything here is in the book first; this is what a process remembers of it.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeVar

import msgspec

from rollout.ledger.sqlite.call_book import BookedThing
from rollout.service.calls import AdapterAsk, encode_fact
from rollout.service.chain import first_chain
from rollout.service.refusals import CallRefused, unknown

PATH_SCHEME = "tinker://"
"""Clients accept no other."""

T = TypeVar("T", bound="Thing")
S = TypeVar("S", bound="SavedVersion | SavedState")


class NamedBase(Protocol):
    """A base model as things name it: who reads a book loads no torch."""

    @property
    def name(self) -> str:
        """What clients call it."""
        ...

    @property
    def digest(self) -> str:
        """Of its files."""
        ...


class Thing(msgspec.Struct, frozen=True, kw_only=True):
    """Something with an id and an owner, which is the name of a key."""

    id: str
    owner: str


class ServiceSession(Thing, frozen=True, kw_only=True, tag="session"):
    """A client's session, as it described itself (JSON)."""

    about: str


class FinishedSession(Thing, frozen=True, kw_only=True, tag="finished"):
    """A session that its client has ended: nothing new begins in it."""


class ModelStart(msgspec.Struct, frozen=True, kw_only=True):
    """What a model begins from: the digest of a state, with its optimizer's moments or without."""

    state: str
    optimizer: bool
    path: str


class ServiceModel(Thing, frozen=True, kw_only=True, tag="model"):
    """A model. ``base`` is the name of a base model; ``chain`` the value before its first call.

    ``adapter`` None: all weights are trained, in a copy of the base; ``start`` None: it begins as the base, with a new adapter.
    """

    session: str
    base: str
    base_digest: str
    adapter: AdapterAsk | None
    chain: str
    start: ModelStart | None = None


class SavedVersion(Thing, frozen=True, kw_only=True, tag="weights"):
    """Weights that a model was saved as; the id is the path that clients name them by.

    ``expires_at`` (seconds since 1970) as it was asked for with the call; a later ``SavedChange`` may say another.
    """

    model: str
    base: str
    digest: str
    expires_at: float | None = None


class SavedState(Thing, frozen=True, kw_only=True, tag="state"):
    """A state that a model was saved as; the id is the path that clients name it by. ``adapter`` as of the model, ``expires_at`` as of weights."""

    model: str
    base: str
    adapter: AdapterAsk | None
    digest: str
    expires_at: float | None = None


AnySaved = SavedVersion | SavedState


class SavedChange(Thing, frozen=True, kw_only=True, tag="change"):
    """What became of something saved, in the order of these; the id is its path and how many there were before.

    ``expires``: it does at ``expires_at`` (seconds since 1970), or, None, never.
    """

    path: str
    change: Literal["deleted", "expired", "published", "withdrawn", "expires"]
    expires_at: float | None = None


class ServiceSampler(Thing, frozen=True, kw_only=True, tag="sampler"):
    """A sampler of fixed weights. ``path`` None: of a base, or of weights without a name."""

    session: str
    base: str
    digest: str
    path: str | None = None


class ServedBase(Thing, frozen=True, kw_only=True, tag="base"):
    """Where a base model was when the service started with it, for those who read the book. It is of no owner."""

    name: str
    uri: str
    digest: str


AnyThing = (
    ServiceSession
    | FinishedSession
    | ServiceModel
    | SavedVersion
    | SavedState
    | SavedChange
    | ServiceSampler
    | ServedBase
)


class SavedStanding(msgspec.Struct, frozen=True, kw_only=True):
    """What changes have made of something saved; ``gone``: how it went, empty while it is there."""

    changes: int = 0
    gone: str = ""
    public: bool = False
    expires_at: float | None = None


def base_id(name: str, digest: str) -> str:
    """The id of a base model's place: another model under the same name is another thing."""
    return f"{name}@{digest}"


class Registry:
    """Things by kind and id."""

    def __init__(self) -> None:
        self._known: dict[tuple[type, str], Thing] = {}
        self._standings: dict[str, SavedStanding] = {}

    def add(self, thing: Thing) -> None:
        """Remember a thing; the first of an id stays."""
        place = (type(thing), thing.id)
        if place in self._known:
            return
        self._known[place] = thing
        if isinstance(thing, SavedChange):
            self._standings[thing.path] = change_standing(self._standing(thing.path), thing)

    def get(self, kind: type[T], name: str) -> T | None:
        """The thing, whoever's it is."""
        found = self._known.get((kind, name))
        assert found is None or isinstance(found, kind)
        return found

    def require(self, kind: type[T], name: str, owner: str) -> T:
        """The owner's thing. Raises CallRefused where there is none, or it is another's."""
        found = self.get(kind, name)
        if found is None or found.owner != owner:
            raise unknown(str(kind.__struct_config__.tag), name)
        return found

    def saved(self, path: str) -> AnySaved | None:
        """What was saved under a path, whoever's it is and whatever became of it."""
        return self.get(SavedVersion, path) or self.get(SavedState, path)

    def standing(self, saved: AnySaved) -> SavedStanding:
        """What became of something saved."""
        return self._standing(saved.id)

    def require_own(self, path: str, owner: str, *, gone: bool = False) -> AnySaved:
        """What the owner saved under a path. Raises CallRefused for none, another's, and unless ``gone`` one that went."""
        found = self.saved(path)
        if found is None or found.owner != owner:
            raise unknown("checkpoint", path)
        if not gone:
            refuse_gone(found, self.standing(found))
        return found

    def require_readable(self, kind: type[S], path: str, owner: str) -> S:
        """The owner's, or a published one. Raises CallRefused where it is neither, or went."""
        found = self.get(kind, path)
        public = found is not None and self.standing(found).public
        if found is None or (found.owner != owner and not public):
            raise unknown(str(kind.__struct_config__.tag), path)
        refuse_gone(found, self.standing(found))
        return found

    def _standing(self, path: str) -> SavedStanding:
        known = self._standings.get(path)
        if known is None:
            saved = self.saved(path)
            known = SavedStanding(expires_at=None if saved is None else saved.expires_at)
        return known

    def all(self, kind: type[T]) -> list[T]:
        """Every one of a kind, oldest first."""
        return [one for one in self._known.values() if isinstance(one, kind)]


def change_standing(standing: SavedStanding, change: SavedChange) -> SavedStanding:
    """The standing behind one more change; what is gone stays gone."""
    gone = standing.gone or (change.change if change.change in ("deleted", "expired") else "")
    public = {"published": True, "withdrawn": False}.get(change.change, standing.public)
    expires = change.expires_at if change.change == "expires" else standing.expires_at
    return SavedStanding(
        changes=standing.changes + 1, gone=gone, public=public and not gone, expires_at=expires
    )


def refuse_gone(saved: AnySaved, standing: SavedStanding) -> None:
    """Raise CallRefused for what was deleted or has expired."""
    if standing.gone:
        how = "has expired" if standing.gone == "expired" else "was deleted"
        raise CallRefused(f"{saved.id} {how}; save under another name, or load another", 404)


def booked(thing: Thing) -> BookedThing:
    """The thing as the book has it."""
    return BookedThing(
        kind=type(thing).__name__, id=thing.id, owner=thing.owner, body=encode_fact(thing)
    )


def read_thing(found: BookedThing) -> AnyThing:
    """A thing of the book."""
    return msgspec.msgpack.decode(found.body, type=AnyThing)  # pyrefly: ignore[bad-argument-type] - msgspec takes unions


def checkpoint_path(model_id: str, kind: str, name: str) -> str:
    """How clients name what was saved; whether there is such a thing is asked elsewhere."""
    return f"{PATH_SCHEME}{model_id}/{kind}/{name}"


def saved_path(model_id: str, name: str) -> str:
    """How clients name saved weights."""
    return checkpoint_path(model_id, "sampler_weights", name)


def state_path(model_id: str, name: str) -> str:
    """How clients name a saved state."""
    return checkpoint_path(model_id, "weights", name)


def sampler_of_call(model_id: str, seq: int) -> str:
    """The id of the sampler that a save without a name makes."""
    return f"{model_id}:sampler:{seq}"


def new_model(
    ids: tuple[str, str, str],
    base: NamedBase,
    adapter: AdapterAsk | None,
    start: ModelStart | None = None,
) -> ServiceModel:
    """A model before its first call; ``ids`` are its own, its session's and its owner's."""
    model_id, session, owner = ids
    return ServiceModel(
        id=model_id,
        owner=owner,
        session=session,
        base=base.name,
        base_digest=base.digest,
        adapter=adapter,
        chain=chain_of_new(base.digest, adapter, start),
        start=start,
    )


def chain_of_new(base_digest: str, adapter: AdapterAsk | None, start: ModelStart | None) -> str:
    """The chain value of a model before its first call."""
    kind, begun = (b"" if one is None else encode_fact(one) for one in (adapter, start))
    return first_chain(base_digest, kind, begun)

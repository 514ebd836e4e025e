"""Our kinds as people name them on the command line. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rollout.errors import SpecError

GROUP, VERSION = "rollout.dev", "v1alpha1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One of our kinds. ``words`` are what people may write for it, the plural resource name first.

    ``has_suspend``: ``spec.suspend`` saves what it has at work.
    """

    name: str
    words: tuple[str, ...]
    has_scale: bool = False
    has_suspend: bool = False

    @property
    def plural(self) -> str:
        """The resource's name in the API's paths."""
        return self.words[0]


RUN = Kind(
    name="RolloutRun",
    words=("rolloutruns", "rolloutrun", "rrun", "run", "runs"),
    has_scale=True,
    has_suspend=True,
)
SNAPSHOT = Kind(
    name="RolloutSnapshot",
    words=("rolloutsnapshots", "rolloutsnapshot", "rsnap", "snapshot", "snapshots"),
)
ENDPOINT = Kind(
    name="RolloutEndpoint",
    words=("rolloutendpoints", "rolloutendpoint", "rend", "endpoint", "endpoints"),
    has_scale=True,
)
SWEEP = Kind(
    name="RolloutSweep",
    words=("rolloutsweeps", "rolloutsweep", "rsweep", "sweep", "sweeps"),
    has_suspend=True,
)
KINDS = (RUN, SNAPSHOT, ENDPOINT, SWEEP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """An object, by kind and name."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        """``rolloutrun/arithmetic``, as kubectl writes it."""
        return f"{self.kind.name.lower()}/{self.name}"


def parse_kind(word: str) -> Kind:
    """The kind that a word means. Raises SpecError with the words there are."""
    for kind in KINDS:
        if word.lower() in kind.words or word == kind.name:
            return kind
    known = ", ".join(kind.words[-2] for kind in KINDS)
    raise SpecError(f"{word}: no kind of ours; expected one of {known}")


def parse_reference(text: str) -> Reference:
    """``arithmetic`` is a run; ``snapshot/best`` names the kind. Raises SpecError."""
    word, slash, name = text.partition("/")
    if not slash:
        return Reference(kind=RUN, name=word)
    if not name or "/" in name:
        raise SpecError(f"{text}: expected NAME or KIND/NAME, such as run/arithmetic")
    return Reference(kind=parse_kind(word), name=name)


def kind_of(document: dict[str, object]) -> Kind | None:
    """The kind of a manifest, None for one that is not ours to submit (a runtime, a Secret)."""
    return next((kind for kind in KINDS if kind.name == document.get("kind")), None)

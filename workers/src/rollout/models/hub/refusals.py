"""What is said when the hub, or the disk, does not give what was asked for: the object, the cause, what to do."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rollout.common.hub import causes, expected_errors, judge
from rollout.errors import HubUnreachable, RolloutError, SpecError, StoreError

NAMES_MAX = 20
"""Revisions that are named where the one that was asked for is not there."""
FULL = (errno.ENOSPC, errno.EDQUOT)
UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubQuestion:
    """What was asked for. ``kind`` is ``model`` or ``data``; ``offline``: the hub was not to be asked. ``file``: one file of it."""

    kind: str
    repo: str
    revision: str | None = None
    offline: bool = False
    file: str = ""

    def __str__(self) -> str:
        at = f" at revision {self.revision}" if self.revision else ""
        return f"{self.kind} hf://{'datasets/' if self.kind == 'data' else ''}{self.repo}{'/' if self.file else ''}{self.file}{at}"

    @property
    def command(self) -> str:
        """What ``hf download`` is told."""
        if self.kind == "model":
            return self.repo
        return f"--repo-type dataset {self.repo} {self.file}".rstrip()

    @property
    def instead(self) -> str:
        """What else a manifest may name."""
        return "file:///folder" if self.kind == "model" else "a file of this machine"

    @property
    def kept_as(self) -> str:
        """What the hub's library calls this kind of repository."""
        return "dataset" if self.kind == "data" else "model"


def refuse(asked: HubQuestion, error: Exception, missing: type[RolloutError]) -> RolloutError:
    """The error to raise for what the hub's library, or the disk, has raised; ``missing`` where it is not to be had.

    ``error`` is one of ``expected_errors()``.
    """
    from huggingface_hub.errors import HFValidationError

    if isinstance(error, HFValidationError):
        return SpecError(f"{asked}: expected hf://owner/name ({first_line(error)})")
    return known_cause(asked, error, missing) or _of_silence(asked, error, missing)


@contextmanager
def named(asked: HubQuestion, missing: type[RolloutError]) -> Iterator[None]:
    """What is raised while it is fetched says what was asked for; what the hub's library raises as ``refuse`` has it."""
    try:
        yield
    except RolloutError as error:
        raise type(error)(f"{asked}: {error}") from error
    except expected_errors() as error:
        raise refuse(asked, error, missing) from error


def known_cause(
    asked: HubQuestion, error: BaseException, missing: type[RolloutError]
) -> RolloutError | None:
    """The error to raise where the hub has said why, or the disk; else None."""
    if said := _of_answer(asked, error):
        return missing(f"{asked}{said}")
    disk = (one for one in causes(error) if isinstance(one, OSError))
    full = next((one for one in disk if one.errno in (*FULL, *UNWRITABLE)), None)
    return None if full is None else _of_disk(asked, full)


def first_line(error: BaseException) -> str:
    """The first line of what an error says, cut to 160 characters."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:160]


def ask_for_access(asked: HubQuestion, missing: type[RolloutError]) -> RolloutError | None:
    """The error to raise where the hub, asked once more, says that one may not read; None where one may, or it is silent."""
    from huggingface_hub import HfApi

    if asked.offline:
        return None
    try:
        HfApi().auth_check(asked.repo, repo_type=asked.kept_as)
    except HubUnreachable:
        return None
    except expected_errors() as error:
        return known_cause(asked, error, missing)
    return None


def _of_answer(asked: HubQuestion, error: BaseException) -> str:
    """What the hub has said, with the fix; empty where it said nothing that a user can mend."""
    from huggingface_hub import errors

    kinds: tuple[tuple[type[Exception], Callable[[HubQuestion, Any], str]], ...] = (
        (errors.GatedRepoError, _gated),
        (errors.RevisionNotFoundError, _no_revision),
        (errors.DisabledRepoError, _disabled),
        (errors.RepositoryNotFoundError, _no_repository),
        (errors.RemoteEntryNotFoundError, _no_file),
        (errors.HfHubHTTPError, _no_access),
    )
    answer = next((one for one in causes(error) if isinstance(one, errors.HfHubHTTPError)), None)
    return next((say(asked, answer) for kind, say in kinds if isinstance(answer, kind)), "")


def _page(asked: HubQuestion) -> str:
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{'datasets/' if asked.kind == 'data' else ''}{asked.repo}"


def _has_token() -> bool:
    from huggingface_hub import get_token

    return get_token() is not None


def _gated(asked: HubQuestion, error: Any) -> str:
    del error
    whose = "with the account of your HF_TOKEN, which has no access" if _has_token() else ""
    give = (
        ""
        if whose
        else ", and give a token of an account that has (HF_TOKEN, or spec.env, valueFrom a Secret)"
    )
    return f" is gated: accept its terms at {_page(asked)} {whose}".rstrip() + give


def _no_revision(asked: HubQuestion, error: Any) -> str:
    del error
    names = _revisions(asked)
    there = f"; there are {', '.join(names)}" if names else ""
    return f": the repository has no such revision{there}. Name one of them, or a commit (40 hex digits)"


def _revisions(asked: HubQuestion) -> list[str]:
    """Branches and tags; empty where the hub does not tell them."""
    import httpx2
    from huggingface_hub import HfApi

    try:
        refs = HfApi().list_repo_refs(asked.repo, repo_type=asked.kept_as)
    except (httpx2.HTTPError, OSError, ValueError, KeyError, RolloutError):
        return []
    names = [one.name for one in (*refs.branches, *refs.tags)]
    more = len(names) - NAMES_MAX
    return [*names[:NAMES_MAX], *([f"{more} more"] if more > 0 else [])]


def _disabled(asked: HubQuestion, error: Any) -> str:
    del error
    return f" is disabled on the hub, for everybody: {_page(asked)} says why; take another"


def _no_repository(asked: HubQuestion, error: Any) -> str:
    del asked, error
    given = (
        "the account of HF_TOKEN has no access" if _has_token() else "no token was given (HF_TOKEN)"
    )
    return f": no such repository, or it is private and {given}"


def _no_file(asked: HubQuestion, error: Any) -> str:
    return f": a file is not there ({first_line(error)}); {_page(asked)} lists those there are"


def _no_access(asked: HubQuestion, error: Any) -> str:
    status = error.response.status_code
    if status == 401:
        return ": the hub does not take the token in HF_TOKEN; make another at its settings, or unset it"
    if status == 403:
        return f": the token in HF_TOKEN may not read it; give it the right to read {asked.repo}"
    return ""


def _of_disk(asked: HubQuestion, error: OSError) -> StoreError:
    place = f" {error.filename}" if error.filename else ""
    if error.errno in FULL:
        fix = "what was downloaded is kept. Free space there, or set HF_HOME to a folder on another disk"
        return StoreError(
            f"{asked}: the disk of the hub's cache{place} is full ({error.strerror}); {fix}"
        )
    return StoreError(
        f"{asked}: the hub's cache{place} cannot be written ({error.strerror}); set HF_HOME to a folder you may write to"
    )


def _of_silence(asked: HubQuestion, error: Exception, missing: type[RolloutError]) -> RolloutError:
    kind = judge(error, missing, offline=asked.offline)
    reached = "was not asked" if asked.offline else "did not give it"
    return kind(
        f"{asked} is not in the local cache and the hub {reached} ({first_line(error)}). "
        f"Download it once where there is a network (`hf download {asked.command}`), set HF_HOME to a "
        f"cache that has it, or use {asked.instead}"
    )

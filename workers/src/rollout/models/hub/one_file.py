"""One file of a data set of the hub, as a model's files are: of one commit, resumed by bytes, believed by its digest."""

from __future__ import annotations

from pathlib import Path

from rollout.common.hub import expected_errors
from rollout.errors import DataNotFound, HubUnreachable
from rollout.models.hub.client import ask, bound_waits, understand
from rollout.models.hub.files import HubFile, is_digest, place_files, repository_folder
from rollout.models.hub.refusals import HubQuestion, named

KIND = "dataset"


def fetch_data_file(repo: str, name: str, revision: str | None) -> Path:
    """The file ``name`` of a data set on this machine.

    Raises DataNotFound when data set, revision, file or access is missing; HubUnreachable when it is not cached and the
    hub does not answer; StoreError for a full disk and for bytes that are not those of their digest.
    """
    from huggingface_hub import is_offline_mode

    offline = is_offline_mode()
    asked = HubQuestion(kind="data", repo=repo, revision=revision, file=name, offline=offline)
    with named(asked, DataNotFound):
        return _find_cached(asked) if offline else _fetch_or_find(asked)


def pin_data(repo: str, revision: str | None) -> str | None:
    """The commit of a data set's revision, by the hub or by the cache; ``revision`` itself where neither tells it."""
    from huggingface_hub import HfApi, is_offline_mode

    offline = is_offline_mode()
    if not offline:
        bound_waits()
    try:
        return ask(
            lambda: HfApi().resolve_revision(
                repo, repo_type=KIND, revision=revision, local_files_only=offline
            )
        ).resolved
    except (*expected_errors(), HubUnreachable):
        return revision


def _find_cached(asked: HubQuestion) -> Path:
    from huggingface_hub import hf_hub_download

    return Path(
        hf_hub_download(
            asked.repo,
            asked.file,
            repo_type=KIND,
            revision=asked.revision,
            local_files_only=True,
        )
    )


def _fetch_or_find(asked: HubQuestion) -> Path:
    from huggingface_hub.errors import (
        LocalEntryNotFoundError,
        RemoteEntryNotFoundError,
        RevisionNotFoundError,
    )

    bound_waits()
    try:
        return _fetch(asked)
    except (RevisionNotFoundError, RemoteEntryNotFoundError):
        raise
    except (HubUnreachable, *expected_errors()) as error:
        try:
            return _find_cached(asked)
        except LocalEntryNotFoundError:
            raise error from None


def _fetch(asked: HubQuestion) -> Path:
    from huggingface_hub import HfApi, hf_hub_download, hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    resolved = understand(
        lambda: ask(
            lambda: HfApi().resolve_revision(asked.repo, repo_type=KIND, revision=asked.revision)
        )
    )
    commit, name, folder = resolved.resolved, asked.file, repository_folder(asked.repo, KIND)
    place = folder / "snapshots" / commit / name
    if not place.exists():
        url = hf_hub_url(asked.repo, name, repo_type=KIND, revision=commit)
        place_files([_look(url, name, commit)], {name: url}, folder, build_hf_headers())
        ask(lambda: hf_hub_download(asked.repo, name, repo_type=KIND, revision=resolved))
    if not place.exists():
        raise HubUnreachable(
            f"the hub's answers do not belong together: {name} of commit {commit[:12]} came as that of another; try"
            f" again, or name another hub (HF_ENDPOINT)"
        )
    return place


def _look(url: str, name: str, commit: str) -> HubFile:
    """What the hub says of a file. Raises HubUnreachable where it is of another commit, or said without a digest."""
    from huggingface_hub import get_hf_file_metadata

    said = ask(lambda: get_hf_file_metadata(url, retry_on_errors=True))
    if said.commit_hash != commit or not is_digest(said.etag or "") or said.size is None:
        raise HubUnreachable(
            f"the hub says of {name} of commit {commit[:12]} that it is of {str(said.commit_hash)[:12]}, with the digest"
            f" {str(said.etag)[:80]!r} and {said.size} bytes; try again, or name another hub (HF_ENDPOINT)"
        )
    return HubFile(
        name=name,
        size_bytes=said.size,
        digest=str(said.etag),
        is_xet=said.xet_file_data is not None,
    )

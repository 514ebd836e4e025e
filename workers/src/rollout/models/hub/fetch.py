"""Models from the Hugging Face hub, through its own cache.

``HF_HUB_OFFLINE``, ``HF_HOME``, ``HF_ENDPOINT`` and ``HF_TOKEN`` are the hub library's and are respected. Refuses anything
that is not safetensors: no pickled weights are ever fetched. A name is resolved to a commit once; every file is of that
commit, and its bytes are those of the digest that the hub lists for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollout.common.hub import expected_errors
from rollout.errors import HubUnreachable, ModelNotFound
from rollout.models.files import check_model, placed_models
from rollout.models.hub.client import ask, bound_waits, understand
from rollout.models.hub.files import HubFile, is_digest, place_files, repository_folder
from rollout.models.hub.refusals import HubQuestion, named

ALLOW_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt"]
IGNORE_PATTERNS = ["*/*"]
_COMMIT = re.compile(r"[0-9a-f]{40}")


def fetch_model(repo: str, revision: str | None, *, offline: bool = False) -> tuple[Path, str]:
    """The model's local snapshot folder and its commit.

    ``offline`` looks in the cache only, as ``HF_HUB_OFFLINE=1`` does. Raises ModelNotFound when the
    repository, revision or access is missing, or when it is not cached and may not be fetched; HubUnreachable
    when it is not cached and the hub does not answer; StoreError for a full disk and for bytes that are not those of
    their digest. Where another container has placed the models, only it asks the hub.
    """
    from huggingface_hub import is_offline_mode

    placed = placed_models()
    cached_only = offline or placed is not None or is_offline_mode()
    asked = HubQuestion(kind="model", repo=repo, revision=revision, offline=cached_only)
    with named(asked, ModelNotFound):
        folder = _find_cached(repo, revision, placed) if cached_only else _fetch_or_find(asked)
    return folder, folder.name if _COMMIT.fullmatch(folder.name) else (revision or "")


def _fetch_or_find(asked: HubQuestion) -> Path:
    """From the hub; where it does not give what is cached already, from the cache, as its own library does."""
    from huggingface_hub.errors import RevisionNotFoundError

    bound_waits()
    try:
        return _fetch(asked.repo, asked.revision)
    except RevisionNotFoundError:
        raise
    except (HubUnreachable, *expected_errors()):
        found = _find_whole(asked)
        if found is None:
            raise
        return found


def _find_whole(asked: HubQuestion) -> Path | None:
    """The cached folder, where it is a whole model."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = _find_cached(asked.repo, asked.revision, None)
        check_model(folder, str(asked))
    except (LocalEntryNotFoundError, ModelNotFound):
        return None
    return folder


def _fetch(repo: str, revision: str | None) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    resolved = understand(lambda: ask(lambda: HfApi().resolve_revision(repo, revision=revision)))
    if not _is_cached_whole(repo, resolved.resolved):
        listed = understand(lambda: list(HfApi().list_repo_tree(repo, revision=resolved.resolved)))
        _place(repo, resolved.resolved, _wanted(listed))
    folder = ask(
        lambda: Path(
            snapshot_download(
                repo,
                revision=resolved,
                allow_patterns=ALLOW_PATTERNS,
                ignore_patterns=IGNORE_PATTERNS,
            )
        )
    )
    if not _is_cached_whole(repo, resolved.resolved):
        raise HubUnreachable(
            f"the hub's answers do not belong together: files of commit {resolved.resolved[:12]} came as those of"
            f" another; try again, or name another hub (HF_ENDPOINT)"
        )
    return folder


def _find_cached(repo: str, revision: str | None, cache: Path | None) -> Path:
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            repo,
            revision=revision,
            allow_patterns=ALLOW_PATTERNS,
            ignore_patterns=IGNORE_PATTERNS,
            cache_dir=cache,
            local_files_only=True,
        )
    )


def _is_cached_whole(repo: str, commit: str) -> bool:
    """Whether the cache has every file of a commit, by the hub's own list of them."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    try:
        listed = _wanted_names(get_cached_repo_tree(repo, revision=commit))
    except CachedRepoTreeNotFoundError:
        return False
    return all((repository_folder(repo) / "snapshots" / commit / name).exists() for name in listed)


def _wanted_names(listed: Sequence[Any]) -> list[str]:
    from huggingface_hub.utils import filter_repo_objects

    names = [one.path for one in listed if hasattr(one, "blob_id")]
    return list(
        filter_repo_objects(names, allow_patterns=ALLOW_PATTERNS, ignore_patterns=IGNORE_PATTERNS)
    )


def _wanted(listed: Sequence[Any]) -> list[HubFile]:
    names = set(_wanted_names(listed))
    return [_read_entry(one) for one in listed if one.path in names]


def _read_entry(entry: Any) -> HubFile:
    """A file of the hub's list. Raises HubUnreachable where it is listed without a digest."""
    digest = entry.lfs.sha256 if entry.lfs else entry.blob_id
    if not is_digest(digest):
        raise HubUnreachable(
            f"the hub lists {entry.path} with {digest[:80]!r}, which is no digest of a file; check HF_ENDPOINT"
        )
    size = entry.lfs.size if entry.lfs else entry.size
    return HubFile(name=entry.path, size_bytes=size, digest=digest, is_xet=bool(entry.xet_hash))


def _place(repo: str, commit: str, files: list[HubFile]) -> None:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    folder = repository_folder(repo)
    missing = [one for one in files if not (folder / "snapshots" / commit / one.name).exists()]
    urls = {one.name: hf_hub_url(repo, one.name, revision=commit) for one in missing}
    place_files(missing, urls, folder, build_hf_headers())

"""Models from the Hugging Face hub, through its own cache.

``HF_HUB_OFFLINE`` and ``HF_HOME`` are the hub library's and are respected. Refuses anything that is
not safetensors: no pickled weights are ever fetched.
"""

from __future__ import annotations

import re
from pathlib import Path

from rollout.common.hub import judge
from rollout.errors import ModelNotFound, SpecError
from rollout.models.files import placed_models

ALLOW_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt"]
IGNORE_PATTERNS = ["*/*"]
_COMMIT = re.compile(r"^[0-9a-f]{40}$")


def fetch_model(repo: str, revision: str | None, *, offline: bool = False) -> tuple[Path, str]:
    """The model's local snapshot folder and its commit.

    ``offline`` looks in the cache only, as ``HF_HUB_OFFLINE=1`` does. Raises ModelNotFound when the
    repository, revision or access is missing, or when it is not cached and may not be fetched; HubUnreachable
    when it is not cached and the hub does not answer. Where another container has placed the models, only it asks the hub.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    placed = placed_models()
    at = f"hf://{repo}" + (f" at revision {revision}" if revision else "")
    try:
        path = snapshot_download(
            repo,
            revision=revision,
            allow_patterns=ALLOW_PATTERNS,
            ignore_patterns=IGNORE_PATTERNS,
            cache_dir=placed,
            local_files_only=offline or placed is not None,
        )
    except HFValidationError as error:
        raise SpecError(f"model {at}: expected hf://owner/name ({error})") from error
    except GatedRepoError as error:
        raise ModelNotFound(
            f"model {at} is gated: accept its terms on the hub and give a token (HF_TOKEN, or "
            f"spec.env, valueFrom a Secret)"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelNotFound(f"model {at}: the repository has no such revision") from error
    except RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"model {at}: no such repository, or it is private and no token was given (HF_TOKEN)"
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        kind = judge(error, ModelNotFound, offline=offline or placed is not None)
        raise kind(
            f"model {at} is not in the local cache and the hub was not reached ({_first(error)}). "
            f"Download it once where there is a network (`hf download {repo}`), set HF_HOME to a "
            f"cache that has it, or use file:///folder"
        ) from error
    folder = Path(path)
    commit = folder.name if _COMMIT.match(folder.name) else (revision or "")
    return folder, commit


def _first(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:160]

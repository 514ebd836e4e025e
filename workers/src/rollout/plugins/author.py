"""What a run's author brings: code for data, and variables for whatever runs it.

Variables come to the author's code by a list: those that a process needs to run at all, and those that the
manifest names. What else stands in our own environment, such as credentials, is not handed on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from rollout_api.fields.reserved import is_loader_variable
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.worker import WorkerConfig

_NEEDED = re.compile(
    r"""HOME|PATH|USER|LOGNAME|SHELL|LANG|LANGUAGE|TZ|TERM|TMPDIR|TEMP|TMP|VIRTUAL_ENV|SYSTEMROOT
    |LC_\w+|XDG_\w+|PYTHON\w*|LD_LIBRARY_PATH|DYLD_\w+|CONDA_\w+
    |HF_\w+|HUGGING_?FACE_\w+|TRANSFORMERS_\w+|TOKENIZERS_\w+|DATASETS_\w+|MPL\w+
    |\w+_NUM_THREADS|OMP_\w+|MKL_\w+|TORCH\w*|CUDA_\w+|NVIDIA_\w+
    |SSL_CERT_\w+|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|(https?|no|all)_proxy|(HTTPS?|NO|ALL)_PROXY
    |ROLLOUT_(CACHE|HOME|RUN_DIR)|ROLLOUT_LOG_\w+|ROLLOUT_TEST_\w+|COVERAGE_\w+""",
    re.VERBOSE,
)
"""Where programs, libraries, caches and certificates lie, and how many threads compute."""


HUB_SETTINGS = frozenset(
    {
        *("HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_XET"),
        *("HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"),
    }
)
"""Plain variables of an author's that say where a hub is and how it is asked, and nothing else."""
_HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def look_environment(ours: Mapping[str, str], spec: RolloutRunSpec) -> dict[str, str]:
    """The whole environment of a child in a coordinator's container, which runs none of the author's code.

    Of the author's variables those about the hub; a token of the platform's goes to no hub of the author's.
    """
    given = {
        one.name: one.value or "" for one in spec.env if one.name in HUB_SETTINGS and not one.secret
    }
    taken = {name: value for name, value in ours.items() if _NEEDED.fullmatch(name)}
    if "HF_ENDPOINT" in given:
        own = {one.name for one in spec.env if one.secret}
        taken = {name: one for name, one in taken.items() if name in own or name not in _HUB_TOKENS}
    return {**taken, **given}


def author_environment(ours: Mapping[str, str], spec: RolloutRunSpec) -> dict[str, str]:
    """The whole environment of a process that runs the author's code, made from that of this process.

    The value of a Secret is taken from ours by name: on one machine the author sets it there.
    """
    mine = [one for one in spec.env if one.goes_to("Coordinator")]
    named = {one.name for one in mine if one.secret}
    taken = {
        name: value for name, value in ours.items() if name in named or _NEEDED.fullmatch(name)
    }
    given = {
        one.name: one.value or ""
        for one in mine
        if not one.secret and not is_loader_variable(one.name)
    }
    return {**taken, **given}


def code_folders(config: WorkerConfig) -> tuple[Path, ...]:
    """Where user code lies: the run's ``code/``, then the manifest's own folder of code."""
    path = None if config.spec.code is None else config.spec.code.path
    own = () if path is None else (Path(path),)
    return (Path(config.layout.run_dir) / "code", *own)

"""Puts the plugin ``rollout_vllm`` into a folder that a vLLM server has on its PYTHONPATH.

The same for a server that we start ourselves and for a stock image in a pod, which gets the folder from
an init container. Beside the package lies the metadata by which vLLM finds it.
"""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path

import rollout_vllm
from rollout.errors import StoreError

PACKAGE = Path(rollout_vllm.__file__).parent
METADATA = "Metadata-Version: 2.1\nName: rollout-vllm\nVersion: {}\n"
ENTRY_POINTS = "[vllm.general_plugins]\nrollout = rollout_vllm.register:register\n"
MODE = 0o755
"""Another user's server may read it."""


def place_plugin(folder: Path) -> None:
    """Write the package and its metadata into ``folder``; what an earlier call left is replaced. Raises StoreError."""
    release = version("rollout-rl")
    info = folder / f"rollout_vllm-{release}.dist-info"
    try:
        for old in (folder / PACKAGE.name, *folder.glob("rollout_vllm-*.dist-info")):
            shutil.rmtree(old, ignore_errors=True)
        shutil.copytree(
            PACKAGE, folder / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__")
        )
        info.mkdir(mode=MODE)
        (info / "METADATA").write_text(METADATA.format(release))
        (info / "entry_points.txt").write_text(ENTRY_POINTS)
    except OSError as error:
        raise StoreError(f"cannot place the vLLM plugin into {folder}: {error}") from error

"""An embedded engine that answers a gateway: ``python -m rollout.entrypoints.serving.embedded --config SETTINGS``."""

from __future__ import annotations

import sys

from rollout.entrypoints.config import parse_arguments, run_process
from rollout.inference.embedded_server.build import read_embedded_settings, run_embedded


def main() -> None:
    """Load the model, then serve it until SIGTERM."""
    settings = read_embedded_settings(parse_arguments(__doc__).config)
    if settings.task == "generate":
        run_embedded(settings)
        return
    from rollout.inference.pooled_server.build import run_pooled

    run_pooled(settings, settings.task)


if __name__ == "__main__":
    sys.exit(run_process(main))

"""The pod of an endpoint's server: ``python -m rollout.entrypoints.serving.pod [--place]``; its order is a variable.

``--place`` brings the model into the cache and ends, for pods whose server only reads a cache of several. Signals are
heeded before anything heavy is imported: the first process of a container has no default for them.
"""

from __future__ import annotations

import os
import sys

from rollout.entrypoints.pod import TERMINATION_LOG, heed_signals


def main() -> int:
    """Be one server, or place its model; the exit code."""
    told = heed_signals()
    from rollout.engines.sizes import engine_folder
    from rollout.entrypoints.config import LAST_WORD_VARIABLE, run_process
    from rollout.pods.serving.server import place_model, read_serve_order, serve

    os.environ.setdefault(LAST_WORD_VARIABLE, TERMINATION_LOG)
    if sys.argv[1:] == ["--place"]:
        return run_process(lambda: place_model(read_serve_order()))
    return run_process(lambda: serve(read_serve_order(), engine_folder(), told))


if __name__ == "__main__":
    sys.exit(main())

"""The pod that holds an endpoint's requests: ``python -m rollout.entrypoints.serving.holder``; its order is a variable."""

from __future__ import annotations

import os
import sys

from rollout.entrypoints.pod import TERMINATION_LOG, heed_signals


def main() -> int:
    """Hold requests until told to end; the exit code."""
    told = heed_signals()
    from rollout.entrypoints.config import LAST_WORD_VARIABLE, run_process
    from rollout.pods.serving.holder import hold, read_hold_order

    os.environ.setdefault(LAST_WORD_VARIABLE, TERMINATION_LOG)
    return run_process(lambda: hold(read_hold_order(), told))


if __name__ == "__main__":
    sys.exit(main())

"""The gateway process: ``python -m rollout.entrypoints.serving.gateway --config SETTINGS``. Loads no tensor library."""

from __future__ import annotations

import asyncio
import resource
import sys

import uvloop

from rollout.entrypoints.config import parse_arguments, run_process
from rollout.inference.gateway.server import read_settings, serve_gateway


def main() -> None:
    """Serve until SIGTERM, then drain."""
    settings = read_settings(parse_arguments(__doc__).config)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_gateway(settings))


if __name__ == "__main__":
    sys.exit(run_process(main))

"""``python -m started_job ARGUMENTS``: one supervised run, as a user's own program would start it."""

import json
import sys

from rollout.errors import RolloutError
from rollout.report import write_report
from rollout.supervisor import run_manifest

arguments = json.loads(sys.argv[1])
lease = arguments.pop("lease_seconds")
if lease is not None:
    from rollout.supervisor import launch

    build = launch.build_config
    times = {"lease_seconds": lease, "heartbeat_seconds": lease / 3}
    launch.build_config = lambda *given: build(*given).model_copy(update=times)
try:
    result = run_manifest(
        arguments.pop("manifest"), progress="plain", report=write_report, **arguments
    )
except RolloutError as error:
    sys.stderr.write(f"error: {error}\n")
    sys.exit(error.exit_code)
sys.exit(result.exit_code)

"""Names that the data plane relies on: files, environment variables, ports and commands of pods.

One place, because the worker image reads them: docs/decisions and the data plane's entry points say
the same.
"""

from __future__ import annotations

PORT = 8443
SERVICE_PORT = 8000
"""Of a training service, for clients: the gateways' port, and in the clear as theirs."""
API_KEYS_FOLDER = "/var/run/rollout/api-keys"
HEALTH_PATH = "/healthz"
ORDER_FOLDER = "/etc/rollout"
ORDER_FILE = "order.json"
KEYS_FOLDER = "/etc/rollout-keys"
KEYS_FILE = "jwks.json"
RUN_FOLDER = "/var/lib/rollout"
ROWS_FOLDER = "/var/run/rollout/rows"
ROWS_SOCKET = f"{ROWS_FOLDER}/socket"
WHEEL_FOLDER = "/var/run/rollout/wheel"
SOURCES_FOLDER = "/var/run/rollout/sources"
CODE_FOLDER = f"{RUN_FOLDER}/code"
CA_FOLDER = "/var/run/rollout/ca"
TLS_FOLDER = "/var/run/rollout/tls"
TOKEN_FOLDER = "/var/run/rollout/token"  # noqa: S105 - a folder
API_FOLDER = "/var/run/rollout/api"
CACHE_FOLDER = "/var/cache/rollout"
SCRATCH_FOLDER = f"{RUN_FOLDER}/cache"
HOME_FOLDER = "/home/rollout"
ENGINE_FOLDER = "/rollout-engine"
TOKEN_SECONDS = 3600
API_SERVER = "https://kubernetes.default.svc"
DSN_VARIABLE = "ROLLOUT_LEDGER_DSN"
CA_KEY, CERTIFICATE, PRIVATE_KEY, AUTHORITY = "ca.key", "tls.crt", "tls.key", "ca.crt"


def audience(uid: str) -> str:
    """Audience of every token of a run."""
    return f"rollout/{uid}"


def worker_command(role: str) -> list[str]:
    """The process of a coordinator, learner or actor."""
    order = f"{ORDER_FOLDER}/{ORDER_FILE}"
    return ["python", "-m", "rollout.entrypoints.pod", role, "--order", order]


def models_command(role: str) -> list[str]:
    """What places a pod's models where its other containers only read."""
    order = f"{ORDER_FOLDER}/{ORDER_FILE}"
    return ["python", "-m", "rollout.entrypoints.models", role, "--order", order]


PURGE_COMMAND = ["python", "-m", "rollout.entrypoints.errands.purge"]
ADOPT_COMMAND = ["python", "-m", "rollout.entrypoints.errands.adopt"]
ADOPT_ORDER = "ROLLOUT_ADOPT_ORDER"
PURGE_ORDER, PURGE_WORK = "ROLLOUT_PURGE_ORDER", "ROLLOUT_PURGE_WORK"
"""The order, and the Job that its pod is of."""
ROWS_COMMAND = ["python", "-m", "rollout.entrypoints.rows", "--socket", ROWS_SOCKET]
ROWS_NETWORK = ["--network", "pod"]
"""Left out, the container closes the network before it does anything else."""
PLUGIN_SOCKET = "ROLLOUT_PLUGIN_SOCKET"
"""Where a plugin is told what to serve on, as on one machine."""
PLACE_PLUGIN = ["rollout", "place-plugin", f"{ENGINE_FOLDER}/plugin"]
ENGINE_COMMAND = ["python3", "-m", "rollout_vllm.launch", ENGINE_FOLDER]
ENGINE_CHECK = ["python3", "-m", "rollout_vllm.launch", "--check", ENGINE_FOLDER]

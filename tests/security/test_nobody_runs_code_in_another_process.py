"""The attacker's wish: bytes of theirs are unpickled by a process of a run, which runs what they say."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("crds/src", "operator/src", "workers/src")
MODULES = {
    *("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"),
    *("multiprocessing", "torch.multiprocessing", "torch.distributed.rpc"),
    "torch.distributed.checkpoint",
}
CALLS = {
    *("torch.load", "torch.save", "np.load", "numpy.load"),
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
    *("send_object_list", "recv_object_list"),
}
BY_THE_RUNS_OWN_PERSON = {
    # A person's own functions, on one machine: from the library's process to the children that it starts,
    # by a file in the run's folder, which nobody else writes.
    "workers/src/rollout/supervisor/functions.py": {"cloudpickle"},
    "workers/src/rollout/plugins/user_code.py": {"pickle"},
}


def names_of(call: ast.AST) -> set[str]:
    """``{"torch.distributed.gather_object", "gather_object"}`` of such a call."""
    whole = ast.unparse(call)
    return {whole, whole.rpartition(".")[2]}


def imported(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        found = {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
        found = {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    else:
        return set()
    parts = [one.split(".") for one in found]
    return {".".join(part[:n]) for part in parts for n in range(1, len(part) + 1)}


def find_pickles(text: str) -> set[str]:
    """What a source imports or calls that turns bytes into code."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        found |= imported(node) & (MODULES | {"torch.load", "torch.save"})
        if isinstance(node, (ast.Attribute, ast.Name)):
            found |= names_of(node) & CALLS
    return found


def sources():
    for place in SOURCES:
        yield from (ROOT / place).rglob("*.py")


def test_no_process_of_ours_takes_a_pickle_from_another():
    found = {str(path.relative_to(ROOT)): find_pickles(path.read_text()) for path in sources()}
    assert {path: what for path, what in found.items() if what} == BY_THE_RUNS_OWN_PERSON


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from multiprocessing import Queue",
        "import torch.multiprocessing as mp",
        "from torch import distributed as d\nd.gather_object(1)",
        "import torch.distributed as d\nsay = d.broadcast_object_list",
        "import torch\ntorch.load('x')",
        "from torch import load",
        "from torch.distributed import checkpoint",
        "def f():\n    import cloudpickle.cloudpickle",
    ],
)
def test_the_search_finds_them_wherever_they_stand(text):
    assert find_pickles(text)


def test_torchs_own_meeting_of_ranks_is_not_used_for_it_pickles_its_state():
    text = "\n".join(path.read_text() for path in sources())
    assert '"--standalone"' not in text
    assert '"c10d"' not in text

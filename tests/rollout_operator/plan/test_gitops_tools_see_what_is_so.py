"""Argo CD's health.lua and Flux's kstatus rules, over the same recorded states of every kind."""

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml

from rollout_api.checks import check_document
from rollout_api.conditions import ConditionType, Reason
from rollout_api.problems import Severity
from rollout_api.v1alpha1.objects.kinds import KINDS

FOLDER = Path(__file__).parents[3] / "manifests" / "argocd" / "rollout.dev"
STATES = sorted(FOLDER.glob("*/testdata/*.yaml"))
CASES = [
    (path.parent, case)
    for path in sorted(FOLDER.glob("*/health_test.yaml"))
    for case in yaml.safe_load(path.read_text())["tests"]
]
INTERPRETERS = ("lua5.1", "lua5.4", "lua5.3", "lua", "luajit")


def label(value):
    return value.name if isinstance(value, Path) else Path(value["inputPath"]).stem


def by_lupa(script, document):
    from lupa import lua51

    runtime = lua51.LuaRuntime(unpack_returned_tuples=True)
    runtime.globals()["obj"] = runtime.table_from(document, recursive=True)
    found = runtime.execute(script)
    return {"status": found["status"], "message": found["message"]}


def as_lua(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"[{json.dumps(k)}]={as_lua(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(as_lua, value)) + "}"
    return "nil" if value is None else json.dumps(value)


def by_command(command, script, document):
    program = (
        f"obj = {as_lua(document)}\nlocal function health()\n{script}\nend\n"
        "local hs = health()\nio.write(hs.status, '\\n', hs.message)\n"
    )
    done = subprocess.run([command, "-"], input=program, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    status, _, message = done.stdout.partition("\n")
    return {"status": status, "message": message}


@cache
def interpreter():
    """How Lua is run on this machine; None when it cannot."""
    try:
        import lupa  # noqa: F401 - asks whether it is there
    except ImportError:
        found = next((name for name in INTERPRETERS if shutil.which(name)), None)
        return (lambda *given: by_command(found, *given)) if found else None
    return by_lupa


@pytest.mark.parametrize(("folder", "case"), CASES, ids=label)
def test_argo_cd_shows_the_health(folder, case):
    if interpreter() is None:
        pytest.skip("no Lua on this machine: install lupa, or one of " + ", ".join(INTERPRETERS))
    document = yaml.safe_load((folder / case["inputPath"]).read_text())

    assert interpreter()((folder / "health.lua").read_text(), document) == case["healthStatus"]


def kstatus(document):
    """The generic rules of sigs.k8s.io/cli-utils/pkg/kstatus (README: "The kstatus rules").

    Being deleted: Terminating. A generation that was not observed: InProgress. Then Reconciling: InProgress,
    or Stalled: Failed. Then Ready, if there is one, decides between Current and InProgress; an object
    without Ready is Current.
    """
    metadata, status = document["metadata"], document.get("status", {})
    if metadata.get("deletionTimestamp"):
        return "Terminating"
    if "observedGeneration" in status and status["observedGeneration"] != metadata["generation"]:
        return "InProgress"
    conditions = status.get("conditions", [])
    for condition in conditions:
        if condition["status"] == "True" and condition["type"] in ("Reconciling", "Stalled"):
            return "InProgress" if condition["type"] == "Reconciling" else "Failed"
    ready = next((c["status"] for c in conditions if c["type"] == "Ready"), "True")
    return "Current" if ready == "True" else "InProgress"


@pytest.mark.parametrize("path", STATES, ids=lambda path: f"{path.parts[-3]}/{path.stem}")
def test_flux_computes_the_status(path):
    text = path.read_text()
    assert kstatus(yaml.safe_load(text)) == re.search(
        r"^# kstatus: (\w+)$", text, re.MULTILINE
    ).group(1)


@pytest.mark.parametrize("path", STATES, ids=lambda path: f"{path.parts[-3]}/{path.stem}")
def test_recorded_states_are_states_that_the_api_knows(path):
    document = yaml.safe_load(path.read_text())
    types, reasons = {str(t) for t in ConditionType}, {str(r) for r in Reason}

    found = check_document(document)
    assert [problem for problem in found if problem.severity is Severity.error] == []
    for condition in document.get("status", {}).get("conditions", []):
        assert condition["type"] in types
        assert condition["reason"] in reasons
    abnormal = {c["type"] for c in document.get("status", {}).get("conditions", [])}
    assert not {"Reconciling", "Stalled"} <= abnormal, "one of the two at a time"


def test_every_kind_has_a_health_check_and_every_state_is_tested():
    assert {path.parent.name for path in FOLDER.glob("*/health.lua")} == {k.name for k in KINDS}
    tested = {(folder / case["inputPath"]).resolve() for folder, case in CASES}
    assert tested == {path.resolve() for path in STATES}


def test_kinds_with_an_end_share_one_check_and_those_without_another():
    texts = {path.parent.name: path.read_text() for path in FOLDER.glob("*/health.lua")}
    ending = {texts.pop(kind) for kind in ("RolloutRun", "RolloutSweep")}
    assert len(ending) == 1
    assert len(set(texts.values())) == 1

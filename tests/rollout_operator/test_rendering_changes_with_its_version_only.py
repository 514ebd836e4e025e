"""What a run attempt's children look like belongs to a TEMPLATE_VERSION: two releases of one version render alike.

``rendered.json`` holds the digests of the version before. Where they differ, raise TEMPLATE_VERSION in
``rollout_operator/run/render/inputs.py`` and run this file (``python tests/rollout_operator/<this file>``).
"""

import json
import sys
from itertools import groupby
from pathlib import Path

import pytest
from test_children_are_as_kubernetes_needs_them import DEVICES, RUNTIME
from worlds import PLATFORM, SPEC, build_inputs

from rollout_operator.kube.managed_fields import digest_of
from rollout_operator.run.attempt import build_children
from rollout_operator.run.render.inputs import TEMPLATE_VERSION

FILE = Path(__file__).with_name("rendered.json")
TRAIN = {"algorithm": {"sft": {}}, "data": {"jsonl": {"uri": "s3://b/rows.jsonl"}}, "maxSteps": 1}
CODE = {
    **SPEC,
    "code": {"configMap": {"name": "code"}},
    "env": [{"name": "MINE", "valueFrom": {"secretKeyRef": {"name": "mine", "key": "k"}}}],
    "train": {**SPEC["train"], "environment": {"python": {"module": "mine", "className": "Mine"}}},
}
RUNS = {
    "smallest": (SPEC, None),
    "offline": ({"model": SPEC["model"], "train": TRAIN}, None),
    "devices": (DEVICES, RUNTIME),
    "data code": (CODE, None),
}


def digests():
    """One digest a run and kind, with a name for the record, whose own name says what the order is."""
    found = {}
    for run, (spec, runtime) in RUNS.items():
        children = build_children(build_inputs(spec, runtime, platform=PLATFORM), "record")
        children.sort(key=lambda child: child["kind"])
        for kind, group in groupby(children, key=lambda child: child["kind"]):
            found[f"{run}/{kind}"] = digest_of(list(group))
    return found


def changed(known):
    now = digests()
    return sorted(key for key in now.keys() | known.keys() if now.get(key) != known.get(key))


def test_rendering_is_what_its_version_says():
    known = json.loads(FILE.read_text())
    differ = changed(known["digests"])
    if known["version"] != TEMPLATE_VERSION:
        pytest.fail(f"TEMPLATE_VERSION is {TEMPLATE_VERSION} now: run {Path(__file__).name}")
    remedy = f"raise TEMPLATE_VERSION, then run {Path(__file__).name}"
    assert not differ, f"rendering changed ({', '.join(differ)}): {remedy}"


def main():
    """Write the digests of a version that is new."""
    known = json.loads(FILE.read_text()) if FILE.exists() else {"version": "", "digests": {}}
    if known["version"] == TEMPLATE_VERSION and changed(known["digests"]):
        sys.exit(f"raise TEMPLATE_VERSION, which is still {TEMPLATE_VERSION}")
    text = {"version": TEMPLATE_VERSION, "digests": digests()}
    FILE.write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main()

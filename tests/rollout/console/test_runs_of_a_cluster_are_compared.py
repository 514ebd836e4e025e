"""`rollout runs compare A B --cluster` says of runs in pods what it says of the same runs here."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
from cluster_kit import EDITS, VIEWS, ModelApiServer, build_object, kubeconfig, listening, rights
from console_kit import make_run

from rollout.cli.main import main

EDITOR, VIEWER = "token-of-editor", "token-of-viewer"
NAMES = ("first", "second")


def coordinator(name):
    labels = {"rollout.dev/role": "coordinator", "rollout.dev/run-uid": f"uid-of-{name}"}
    return {
        "metadata": {"name": f"{name}-coordinator-0", "labels": labels},
        "spec": {"containers": [{"name": "coordinator"}]},
        "status": {"phase": "Running"},
    }


@pytest.fixture
async def rollout(tmp_path, monkeypatch, capsys):
    """The command, as the holder of a token; exit code, what it printed, and what it said."""
    for name, texts in zip(NAMES, (["a", "b"], ["c", "d", "e"]), strict=True):
        await make_run(tmp_path, name, texts)
    server = ModelApiServer(
        people={EDITOR: rights("team", *EDITS), VIEWER: rights("team", *VIEWS)},
        runs=[build_object(name) for name in NAMES],
        pods=[coordinator(name) for name in NAMES],
        folder=tmp_path / NAMES[0],
    )
    monkeypatch.setenv("ROLLOUT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(words):
        monkeypatch.setattr(sys, "argv", ["rollout", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return ended.value.code or 0, printed.out, printed.err

    async with listening(server.build()) as port:

        async def call(token, *words):
            path = tmp_path / "kubeconfig"
            path.write_text(json.dumps(kubeconfig(port, token)))
            monkeypatch.setenv("KUBECONFIG", str(path))
            return await asyncio.to_thread(run, words)

        yield call


async def test_it_says_what_it_says_of_the_same_runs_here(rollout, tmp_path):
    words = ("runs", "compare", *NAMES, "--output", "json")

    here = await rollout(EDITOR, *words)
    there = await rollout(EDITOR, *words, "--cluster")

    assert (here[0], there[0]) == (0, 0), there[2]
    assert json.loads(there[1]) == json.loads(here[1])
    assert (tmp_path / "compare.html").is_file()


async def test_who_may_not_look_into_pods_is_told_so(rollout):
    code, printed, said = await rollout(VIEWER, "runs", "compare", *NAMES, "--cluster")

    assert code == 4
    assert printed == ""
    assert "you may not create an exec in pod/first-coordinator-0" in said


async def test_one_run_is_nothing_to_compare(rollout):
    code, _, said = await rollout(EDITOR, "runs", "compare", "first", "first", "--cluster")

    assert code == 2
    assert "1 run given" in said

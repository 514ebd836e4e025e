"""A plugin that another party starts, and starts again: it is met at its socket, and nobody who is not configured is believed."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from plugin_kit import asked, completion, write
from typer.testing import CliRunner

from rollout.actor.task_scoring import build_task_scoring
from rollout.cli.main import app
from rollout.environments.build import build_environment
from rollout.environments.plugin import RowsSource
from rollout.environments.prompts import is_measured
from rollout.environments.with_tools import tools_of
from rollout.errors import InfrastructureError, SpecError
from rollout.plugins.sidecar import container
from rollout.plugins.sidecar.client import DEATHS_MAX, SCORE, PluginClient
from rollout.plugins.sidecar.container import PluginImage, PluginSocket, find_unreachable
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.plugins.sidecar.reward import PluginReward
from rollout.tools.sources import build_sources, tool_digests
from rollout_api.v1alpha1.environment import Environment, Plugin, ToolPlugin
from rollout_api.v1alpha1.run import RolloutRunSpec

pytestmark = pytest.mark.process

DIGEST = "sha256:" + "a1" * 32
SCORES = """
    def score(prompts, completions, rows, word="unset", also="its own"):
        return [{"word": float(word in one.text), "also": float(also == "its own")} for one in completions]
    serve(reward=score)
"""
PARAMETERS = [{"name": "word"}, {"name": "also", "default": "its own"}]


class Party:
    """Who starts the plugin: a kubelet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "socket"
        self.process: subprocess.Popen[bytes] | None = None

    def restart(self) -> None:
        """Again, until it can be reached."""
        self.kill()
        self.start()
        while find_unreachable(str(self.socket)):
            assert self.process.poll() is None, "it ended by itself"
            time.sleep(0.01)

    def start(self) -> None:
        environment = {**os.environ, "ROLLOUT_PLUGIN_SOCKET": str(self.socket)}
        self.process = subprocess.Popen(
            [sys.executable, "plugin.py"], cwd=self.folder, env=environment
        )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def image(self, **changes: str) -> PluginImage:
        told = {"name": "tried", "image": f"r.example/tried@{DIGEST}", "kind": "reward"}
        return PluginImage(**{**told, "socket": str(self.socket), **changes})


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One that runs on beside every test that does it no harm."""
    yield from _served(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def party(tmp_path):
    yield from _served(tmp_path)


def _served(place):
    found = Party(write(place / "p", SCORES, parameters=PARAMETERS))
    found.start()
    yield found
    found.kill()


def score(client, text):
    sample = contract.Sample(reply=text, finish="stop", row_json="{}")
    return dict(client.ask(SCORE, contract.ScoreRequest(samples=[sample]), 300).scores[0].named)


def test_it_is_configured_scores_and_is_not_ours_to_end(shared):
    met = PluginClient(shared.image(), {"word": "tea"})
    assert score(met, "tea") == {"word": 1.0, "also": 1.0}
    assert score(met, "milk") == {"word": 0.0, "also": 1.0}
    assert shared.socket.stat().st_mode & 0o777 == 0o660
    met.close()
    assert shared.process.poll() is None


def test_who_takes_its_place_is_configured_and_the_third_death_stops_the_run(party):
    met = PluginClient(party.image(), {"word": "tea"})
    assert score(met, "tea")["word"] == 1.0
    party.restart()
    assert score(met, "tea")["word"] == 1.0, "another process answered, which knows no word"
    party.kill()
    died = r"died during .*the log of the container plugin-tried"
    with pytest.raises(InfrastructureError, match=died):
        score(met, "tea")
    party.restart()
    assert score(met, "tea")["word"] == 1.0
    party.kill()
    with pytest.raises(InfrastructureError, match=died):
        score(met, "tea")
    with pytest.raises(SpecError, match=f"tried sha256:a1a1a1a1a1a1 has died {DEATHS_MAX} times"):
        score(met, "tea")
    met.close()


def test_an_answer_of_who_has_bound_the_socket_since_is_known_as_anothers(tmp_path):
    path = tmp_path / "socket"
    known = PluginSocket(PluginImage(name="a", image="a", socket=str(path), kind="reward"))
    with socket.socket(socket.AF_UNIX) as first:
        first.bind(str(path))
        first.listen()
        known.meet()
        assert known.answered()
        assert not known.has_ended(0.0)
    path.rename(tmp_path / "gone")  # kept, so that its number is not given again
    with socket.socket(socket.AF_UNIX) as second:
        second.bind(str(path))
        second.listen()
        assert not known.answered()
        assert known.has_ended(0.0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": "other"}, "its process says name 'tried', the run says 'other'"),
        ({"kind": "environment"}, "its process says kind 'reward', the run says 'environment'"),
    ],
)
def test_another_program_than_was_named_is_refused(shared, changes, says):
    with pytest.raises(SpecError, match=says):
        PluginClient(shared.image(**changes), {}).start()


@pytest.mark.parametrize("given", [{}, {"word": "a", "wrod": "b"}])
def test_it_refuses_parameters_itself_by_what_its_own_manifest_says(shared, given):
    with pytest.raises(SpecError, match="parameter"):
        PluginClient(shared.image(), given).start()


@pytest.mark.parametrize("is_there", [False, True])
def test_one_that_does_not_come_up_is_refused_with_what_is_there(tmp_path, monkeypatch, is_there):
    monkeypatch.setattr(container, "START_SECONDS", 0.1)
    path = tmp_path / "socket"
    if is_there:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))  # and nobody listens any more
    image = PluginImage(name="late", image=f"late@{DIGEST}", socket=str(path), kind="reward")
    says = "nobody listens at" if is_there else "there is no socket at"
    with pytest.raises(SpecError, match=f"late sha256:.* did not serve within .*{says}"):
        PluginClient(image, {}).start()


def test_a_reward_finds_its_container_by_what_the_manifest_says(shared, monkeypatch):
    from rollout.plugins.sidecar import named

    monkeypatch.setattr(named, "image_of", lambda one, kind: shared.image(name=one.name, kind=kind))
    told = {"container": {"name": "tried", "image": f"r.example/tried@{DIGEST}"}}
    source = Plugin.model_validate({**told, "parameters": [{"name": "word", "value": "tea"}]})
    opened = named.open_plugin(source, "reward", (), "reward tried")
    reward = PluginReward(named.reward_argument(opened, source, 300.0))
    assert reward.score([asked()], [completion("tea")], [{}])[0]["word"] == 1.0


COUNTS = """
    import time
    class Shelf:
        def __init__(self, row):
            self.row = row
        def count(self, word: str) -> str:
            "How often a word stands in the question."
            return str(self.row["prompt"].count(word))
    serve(tool=Shelf)
"""
COUNT = {
    "name": "count",
    "description": "How often a word stands in the question.",
    "parameters": json.dumps(
        {
            "type": "object",
            "properties": {"word": {"type": "string"}},
            "required": ["word"],
        }
    ),
}


def tools_said(folder):
    said = CliRunner().invoke(app, ["plugins", "show", str(folder), "--tools"])
    assert said.exit_code == 0, said.output
    return json.loads(said.stdout)


def tool_source(monkeypatch, where, *declared):
    from rollout.plugins.sidecar import named

    image = PluginImage(name="tried", image=f"r/t@{DIGEST}", socket=str(where), kind="tool")
    monkeypatch.setattr(named, "image_of", lambda _, kind: replace(image, kind=kind))
    told = {"name": "tried", "image": image.image, "tools": list(declared)}
    (source,) = build_sources((), plugins=[ToolPlugin.model_validate({"container": told})])
    return source


def test_the_tools_of_an_image_are_what_the_run_says_to_whoever_cannot_ask_it(
    tmp_path, monkeypatch
):
    source = tool_source(monkeypatch, tmp_path / "nowhere", COUNT)
    assert [one.name for one in source.specs] == ["tried__count"]


def test_what_show_prints_of_a_folder_is_what_an_actor_finds_in_its_image(tmp_path, monkeypatch):
    party = Party(write(tmp_path / "p", COUNTS, kind="tool"))
    source = tool_source(monkeypatch, party.socket, *tools_said(party.folder))
    party.start()
    try:
        source.require_declared()
        (tool,) = source.open({"prompt": "tea and tea"})
        assert asyncio.run(called(tool, word="tea")) == "2"
    finally:
        source.client.close()
        party.kill()


async def called(tool, **arguments):
    try:
        return (await tool.call(arguments, "c")).text
    finally:
        await tool.close()


@pytest.mark.parametrize(
    "declared",
    [
        [{**COUNT, "description": "Counts."}],
        [{**COUNT, "parameters": '{"type": "object"}'}],
        [{**COUNT, "name": "sum"}],
        [COUNT, {**COUNT, "name": "sum"}],
    ],
    ids=["text", "arguments", "name", "more"],
)
def test_an_image_with_other_tools_than_the_run_says_plays_no_episode(
    tmp_path, monkeypatch, declared
):
    party = Party(write(tmp_path / "p", COUNTS, kind="tool"))
    source = tool_source(monkeypatch, party.socket, *declared)
    party.start()
    try:
        with pytest.raises(SpecError, match=r"tried__\w+.* is not what toolPlugins says"):
            source.require_declared()
    finally:
        source.client.close()
        party.kill()


def test_an_actor_asks_before_it_plays_and_who_plans_the_run_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(container, "START_SECONDS", 0.1)
    source = tool_source(monkeypatch, tmp_path / "socket", COUNT)
    told = {"name": "tried", "image": f"r/t@{DIGEST}", "tools": [COUNT]}
    environment = {"builtin": {"name": "arithmetic"}, "toolPlugins": [{"container": told}]}
    train = {"algorithm": {"grpo": {"promptsPerStep": 1}}, "environment": environment}
    spec = RolloutRunSpec.model_validate({"model": {"uri": "rollout://tiny-agent"}, "train": train})
    planned = tool_digests(tools_of(build_environment(spec.train.environment)))
    assert planned == {"tried__count": source.specs[0].digest}
    config = SimpleNamespace(
        spec=spec,
        layout=SimpleNamespace(run_dir=str(tmp_path)),
        resolved=SimpleNamespace(
            models={}, model_path="", tool_digests=planned, plugin_digests={"tried": DIGEST}
        ),
    )
    with pytest.raises(SpecError, match=r"tried sha256:.* did not serve within"):
        build_task_scoring(config)


def test_an_image_of_tools_that_does_not_come_up_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(container, "START_SECONDS", 0.1)
    source = tool_source(monkeypatch, tmp_path / "socket", COUNT)
    with pytest.raises(SpecError, match=r"tried sha256:.* did not serve within"):
        source.require_declared()


@pytest.mark.parametrize(
    "declared",
    [
        {**COUNT, "description": "x" * 4096, "parameters": '{"type": "array"}'},
        {**COUNT, "name": "n" * 64},
    ],
)
def test_a_tool_that_no_prompt_could_have_is_refused_where_the_run_is_planned(
    tmp_path, monkeypatch, declared
):
    with pytest.raises(SpecError, match=r"environment\.toolPlugins: tried: tool"):
        tool_source(monkeypatch, tmp_path / "socket", declared)


@pytest.mark.parametrize("tools", [(), ("calculator",)])
def test_who_plans_a_run_starts_no_episode_of_an_environment_in_another_container(tools):
    told = {"container": {"name": "far", "image": f"r.example/far@{DIGEST}"}}
    given = Environment.model_validate({"plugin": told, "tools": tools})
    assert not is_measured(RowsSource([{"prompt": "a"}], "rows"), build_environment(given), 10)

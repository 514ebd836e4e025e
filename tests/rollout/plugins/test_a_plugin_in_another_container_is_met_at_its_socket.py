"""A plugin that another party starts, and starts again: it is met at its socket, and nobody who is not configured is believed."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from plugin_kit import asked, completion, write

from rollout.environments.build import build_environment
from rollout.environments.plugin import RowsSource
from rollout.environments.prompts import is_measured
from rollout.errors import InfrastructureError, SpecError
from rollout.plugins.sidecar import container
from rollout.plugins.sidecar.client import DEATHS_MAX, SCORE, PluginClient
from rollout.plugins.sidecar.container import PluginImage, PluginSocket, find_unreachable
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.plugins.sidecar.reward import PluginReward
from rollout_api.v1alpha1.environment import Environment, Plugin

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


@pytest.mark.parametrize("tools", [(), ("calculator",)])
def test_who_plans_a_run_starts_no_episode_of_an_environment_in_another_container(tools):
    told = {"container": {"name": "far", "image": f"r.example/far@{DIGEST}"}}
    given = Environment.model_validate({"plugin": told, "tools": tools})
    assert not is_measured(RowsSource([{"prompt": "a"}], "rows"), build_environment(given), 10)

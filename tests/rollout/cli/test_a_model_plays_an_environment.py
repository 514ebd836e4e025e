"""``rollout env try --model``: an episode in the actor's own loop, whoever plays it."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.debug.playing.model import open_model
from rollout.errors import EngineError, InfrastructureError, ModelNotFound, RolloutError
from rollout.models.resolve import resolve_model
from rollout.weights.digest import digest_tensors, load_weights

AGENT = "rollout://tiny-agent"
TOOLED = ("arithmetic", "--tool", "calculator", "--parameter", "digits=3")
CODE = """
from rollout.errors import InfrastructureError
from rollout.turns import Ending, State
from rollout.types import Message


class Endless:
    built = 0

    def __init__(self, row):
        self.row = row
        type(self).built += 1

    @classmethod
    def rows(cls, split):
        return [{"prompt": "go on", "answer": "3"}]

    async def start(self):
        return State(messages=(Message(role="user", content=self.row["prompt"]),))

    async def step(self, action):
        return State(messages=(Message(role="user", content="more"),), turn_reward=1.0)

    async def close(self): ...


class Shaky(Endless):
    lost = 1

    async def step(self, action):
        if self.built <= self.lost:
            raise InfrastructureError("the node is gone")
        return Ending(turn_reward=2.0)


class Lost(Shaky):
    lost = 9


class Broken(Endless):
    async def step(self, action):
        return Ending(kind="no-file", owner="task", detail="row 0 names none")

    async def close(self):
        raise OSError("it was closed before")
"""


def played(*words, written=""):
    return CliRunner().invoke(app, ["env", "try", *words], input=written)


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = f"endings_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.fixture(scope="module")
def agent_folder():
    return resolve_model(AGENT).path


def test_an_agent_asks_its_calculator_and_answers():
    done = played(*TOOLED, "--row", "77777", "--model", AGENT, "--temperature", "0")

    assert done.exit_code == 0, done.output
    assert "assistant: <tool_call>" in done.stdout
    assert 'call calculator {"expression": "' in done.stdout
    assert "result calculator: " in done.stdout
    assert "ended stop (owner policy)" in done.stdout
    assert "reward exact-match " in done.stdout


def test_equal_seeds_play_equal_episodes():
    words = (*TOOLED, "--row", "54321", "--model", AGENT, "--max-tokens", "40")
    first, again, other = (played(*words, "--seed", seed).stdout for seed in ("1", "1", "2"))

    assert first == again != other


def test_a_reply_that_is_cut_off_is_shown_and_goes_to_no_environment():
    done = played(*TOOLED, "--model", AGENT, "--max-tokens", "1")

    assert "assistant: " in done.stdout
    assert "turn 1" not in done.stdout
    assert "ended length (owner policy)" in done.stdout


def test_weights_in_several_files_are_one_model(agent_folder, tmp_path):
    tensors = load_file(agent_folder / "model.safetensors")
    for path in agent_folder.iterdir():
        if path.suffix != ".safetensors":
            (tmp_path / path.name).symlink_to(path)
    names = sorted(tensors)
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        save_file({n: tensors[n] for n in part}, tmp_path / f"model-{number}-of-2.safetensors")

    assert digest_tensors(load_weights(tmp_path)) == digest_tensors(tensors)
    assert open_model(tmp_path.as_uri()).engine.version is not None


def test_weights_that_are_no_weights_are_refused(agent_folder, tmp_path):
    for path in agent_folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "model.safetensors").unlink()
    save_file({"lonely": torch.zeros(1)}, tmp_path / "model.safetensors")

    with pytest.raises(EngineError, match=r"model.embed_tokens.weight"):
        open_model(tmp_path.as_uri())


def test_the_turns_of_an_episode_are_counted_as_in_a_run(module):
    done = played(f"{module}.Endless", written="go\n" * 70)

    assert "turn 64 reward 1" in done.stdout
    assert "turn 65" not in done.stdout
    assert "ended turn-limit (owner policy)" in done.stdout
    assert "reward environment 64" in done.stdout


def test_a_reply_may_be_empty(module):
    done = played(f"{module}.Endless", written="\n\n")

    assert "turn 2 reward 1" in done.stdout
    assert "left before its end" in done.stderr


def test_a_lost_environment_is_made_afresh_and_its_rewards_count_once(module):
    done = played(f"{module}.Shaky", written="go\n")

    assert "a fresh environment hears the same replies: the node is gone" in done.stderr
    assert "ended stop (owner policy)" in done.stdout
    assert "reward environment 2" in done.stdout


def test_one_that_is_lost_twice_is_told(module):
    done = played(f"{module}.Lost", written="go\n")

    assert isinstance(done.exception, InfrastructureError)
    assert "the node is gone" in str(done.exception)


def test_an_ending_of_the_tasks_has_no_reward_and_a_close_that_fails_is_told(module):
    done = played(f"{module}.Broken", written="go\n")

    assert "ended no-file (owner task): row 0 names none" in done.stdout
    assert "reward" not in done.stdout
    assert "close failed: OSError: it was closed before" in done.stderr


def test_a_row_that_its_tools_cannot_use_is_named(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "who?"}\n')
    done = played("single-turn", "--tool", "search", "--data", str(tmp_path / "rows.jsonl"))

    assert "no field 'documents'" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seed", "1"], "--seed says how a model is sampled: give --model"),
        (["--max-tokens", "9"], "--max-tokens says how a model is sampled"),
        (["--model", "rollout://nobody"], "no such built-in model"),
    ],
)
def test_what_says_nothing_is_refused(words, said):
    done = played("arithmetic", *words)

    assert isinstance(done.exception, RolloutError)
    assert said in str(done.exception)


@pytest.mark.process
def test_servers_and_hosts_are_tools_too(sandbox_host):
    done = played("arithmetic", "--http-host", "docs.example.org", written="7\n")
    local = played("arithmetic", "--http-host", "localhost")
    gone = played("arithmetic", "--mcp-server", "shelf=python nobody.py")

    assert "Hosts: docs.example.org." in done.stdout
    assert "http.hosts.0: String should match pattern" in str(local.exception)
    assert "MCP server shelf: the server has ended" in str(gone.exception)
    assert "nobody.py" in str(gone.exception)


def test_a_model_that_is_not_there_is_named(tmp_path):
    done = played("arithmetic", "--model", (tmp_path / "none").as_uri())

    assert isinstance(done.exception, ModelNotFound)

"""A plugin's process that uses memory: what it says of itself, what it reads and writes over its socket, and after its death."""

import asyncio
import json

import pytest
from plugin_kit import client, write

from rollout.environments.memory import EpisodeMemory, wants_memory
from rollout.environments.with_tools import ToolBuilder
from rollout.errors import InfrastructureError, SpecError
from rollout.memory import ENTRIES_MAX, MemoryWrite, encode_vector
from rollout.plugins.sidecar.client import PluginClient
from rollout.plugins.sidecar.container import PluginImage
from rollout.plugins.sidecar.kinds.environment import SidecarBuilder
from rollout.plugins.sidecar.manifest import read_plugin
from rollout.turns import Action
from rollout.types import Message

pytestmark = pytest.mark.process

GAME = """
    import asyncio, os
    from rollout.turns import Ending, State
    from rollout.types import Message

    class Notes:
        uses_memory = True

        def __init__(self, row, memory, also="nothing"):
            self.row, self.memory = row, memory

        async def start(self):
            found = self.memory.search([1.0, 0.0], k=5000)
            self.memory.put("last", len(found))
            text = f"{self.memory.get('known')} {len(found)} {found[0].key}"
            return State(messages=(Message(role="user", content=text),))

        async def step(self, action):
            if action.text == "die":
                os._exit(3)
            self.memory.put("said", action.text)
            return Ending(kind=str(self.memory.get("known")))

    serve(environment=Notes)
"""
PLAIN = """
    class Plain:
        def __init__(self, row):
            self.row = row
        def start(self):
            return "hello"
        def step(self, reply):
            return True
    serve(environment=Plain)
"""
LIAR = "import rollout.plugins.serving as s\ns._uses_memory = lambda *a: True\n"


def entries():
    """As many as there may be, of the largest."""
    vector = encode_vector([1.0, *[0.5] * 255])
    flat = encode_vector([1.0, 0.25])
    made = [
        MemoryWrite(key=f"k{n:04d}", value=json.dumps("x" * 4000), vector=flat)
        for n in range(ENTRIES_MAX - 2)
    ]
    made += [
        MemoryWrite(key="known", value="7"),
        MemoryWrite(key="long", value="1", vector=vector),
    ]
    return {one.key: one for one in made}


def said(text):
    return Action(message=Message(role="assistant", content=text), text=text, turn=0)


def test_the_whole_memory_is_read_and_a_death_writes_nothing(tmp_path):
    builder = SidecarBuilder(
        read_plugin(write(tmp_path / "p", GAME, kind="environment", contract=2, concurrency=1)), {}
    )

    async def play():
        assert await wants_memory(ToolBuilder(inner=builder, sources=()))
        memory, given = EpisodeMemory(entries()), {"prompt": "q"}
        episode = builder.build_with_memory(given, memory)
        state = await episode.start()
        assert state.messages[0].text == f"7 {ENTRIES_MAX - 2} k0000"
        assert (await episode.step(said("tea"))).kind == "7"
        assert [one.key for one in memory.finish()] == ["last", "said"]
        await episode.close()

        killed = EpisodeMemory(entries())
        episode = builder.build_with_memory(given, killed)
        await episode.start()
        with pytest.raises(InfrastructureError, match="died"):
            await episode.step(said("die"))
        alone = builder.build(given)
        with pytest.raises(Exception, match="IndexError"):
            await alone.start()
        again = EpisodeMemory(entries())
        episode = builder.build_with_memory(given, again)
        await episode.start()
        assert (await episode.step(said("tea"))).kind == "7"
        assert again.finish() == memory.finish()
        await episode.close()

    asyncio.run(play())
    builder.client.close()


def test_memory_is_of_a_contract_that_has_it_and_who_says_the_former_plays_without(tmp_path):
    old = write(tmp_path / "old", GAME, kind="environment", contract=1)
    with pytest.raises(SpecError, match=r"from contract 2 on: write contract: 2 in plugin\.yaml"):
        client(old).start()
    liar = write(
        tmp_path / "liar",
        LIAR + "\n" + "\n".join(line[4:] for line in PLAIN.splitlines()),
        kind="environment",
    )
    with pytest.raises(SpecError, match="uses memory and says contract 1"):
        client(liar).start()
    newer = write(tmp_path / "newer", PLAIN, kind="environment")
    (newer / "plugin.yaml").write_text(
        (newer / "plugin.yaml").read_text().replace('"contract": 1', '"contract": 3')
    )
    with pytest.raises(SpecError, match="rollout speaks versions 1 to 2, got 3"):
        read_plugin(newer)
    plain = client(write(tmp_path / "plain", PLAIN, kind="environment"))
    plain.start()
    assert not plain.uses_memory
    image = PluginImage(
        name="tried",
        image="r.example/a@sha256:" + "a1" * 32,
        socket=plain.socket,
        kind="environment",
    )
    met = PluginClient(image, {})
    met.start()
    assert not met.uses_memory
    met.close()
    plain.close()

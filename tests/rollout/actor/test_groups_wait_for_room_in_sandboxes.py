"""Where episodes keep their sandbox pods while they wait for each other, groups begin only when there is room for all of them."""

import asyncio
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from rollout.actor.sandboxes import EpisodeRoom, episode_room


@given(st.integers(1, 6), st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_no_more_episodes_are_in_play_than_there_are_places_and_all_come_to_their_turn(
    places, groups
):
    room, begun, present = EpisodeRoom(places), [], [0]

    async def play(number: int, size: int) -> None:
        async with room.of(size):
            begun.append(number)
            present[0] += min(size, places)
            assert present[0] <= places
            await asyncio.sleep(0)
            present[0] -= min(size, places)

    async def live() -> None:
        async with asyncio.timeout(30):
            await asyncio.gather(*(play(*one) for one in enumerate(groups)))

    asyncio.run(live())
    assert begun == list(range(len(groups))), "in the order in which they asked"


def test_a_group_that_is_given_up_leaves_its_place_to_others():
    async def live() -> None:
        room, held = EpisodeRoom(2), asyncio.Event()

        async def hold() -> None:
            async with room.of(2):
                held.set()
                await asyncio.Event().wait()

        holding, waiting = asyncio.create_task(hold()), asyncio.create_task(hold())
        await held.wait()
        waiting.cancel()
        holding.cancel()
        await asyncio.wait({holding, waiting})
        async with asyncio.timeout(30), room.of(2):
            pass

    asyncio.run(live())


def test_an_actor_has_its_share_of_the_runs_pods_where_members_of_a_group_wait():
    def config(mode: str, pods: int, actors: int, **changes):
        scale = SimpleNamespace(replicas=actors, autoscale=None)
        spec = SimpleNamespace(numerics=SimpleNamespace(mode=mode), actors=scale)
        given = {"sandboxes": SimpleNamespace(pods_max=pods), "spec": spec, **changes}
        return SimpleNamespace(**given)

    async def places(room: EpisodeRoom) -> int:
        return room._places

    assert episode_room(config("Fast", 8, 1)) is None
    assert episode_room(config("Exact", 8, 1, sandboxes=None)) is None
    assert asyncio.run(places(episode_room(config("Exact", 8, 3)))) == 2

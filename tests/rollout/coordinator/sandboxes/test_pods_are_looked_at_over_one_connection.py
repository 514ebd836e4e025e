"""The broker looks at its pods over one connection; the account's token is read anew for each call, and nothing is left open."""

import asyncio

from aiohttp import web

from rollout.coordinator.sandboxes.pod_api import ApiPods
from rollout_api.worker import ProgressWriting


async def served(token_file, look):
    """What an API server hears of ``look(pods)``: connections, and the tokens of its calls."""
    connections, tokens = set(), []

    async def answer(request):
        connections.add(request.transport)
        tokens.append(request.headers["Authorization"])
        return web.json_response({"items": []})

    app = web.Application()
    app.router.add_get("/api/v1/namespaces/team/pods", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    api = ProgressWriting(api_url=f"http://127.0.0.1:{port}", token_file=str(token_file))
    try:
        await look(ApiPods(api, "team", "a=b"))
        left = [one for one in connections if not one.is_closing()]
        for _ in range(200):
            if not left:
                break
            await asyncio.sleep(0.01)
            left = [one for one in connections if not one.is_closing()]
        return len(connections), tokens, len(left)
    finally:
        await runner.cleanup()


async def test_looks_share_a_connection_and_each_has_the_token_of_now(tmp_path):
    token = tmp_path / "token"

    async def look(pods):
        async with pods.keeping():
            for name in ("first", "second", "second"):
                token.write_text(name)
                await pods.list()

    connections, tokens, left = await served(token, look)
    assert (connections, left) == (1, 0)
    assert tokens == ["Bearer first", "Bearer second", "Bearer second"]


async def test_a_look_by_itself_leaves_nothing_open(tmp_path):
    (tmp_path / "token").write_text("mine")

    async def look(pods):
        await pods.list()
        await pods.list()

    assert await served(tmp_path / "token", look) == (2, ["Bearer mine"] * 2, 0)

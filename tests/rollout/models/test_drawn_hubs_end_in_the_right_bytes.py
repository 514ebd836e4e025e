"""Hubs that fail as drawn: the right folder, or a refusal by model, cause and fix; and behind it, a healthy hub sends only what is missing."""

import hashlib
from random import Random

import pytest
from hub_kit import SHARDS, asker, digest_of, model_repo
from hub_server import open_hub

pytestmark = pytest.mark.process

QUICK, ALL, PART = 28, 200, 29
ELSEWHERE = "c" * 40
KINDS = {
    # what is wrong: how it is made, what it may come to, and words of the refusal
    "flaky": ({}, {None}, ""),
    "gone": ({"gone_after": 9}, {"HubUnreachable"}, "not in the local cache"),
    "store gone": ({"store_gone": True}, {"HubUnreachable"}, "not in the local cache"),
    "gated": ({"gate": 401}, {"ModelNotFound"}, "accept its terms"),
    "forbidden": ({"gate": 403}, {"ModelNotFound"}, "HF_TOKEN"),
    "private": ({}, {"ModelNotFound"}, "no such repository, or it is private"),
    "revision": ({}, {"ModelNotFound"}, "there are main, v1"),
    "spoilt": ({"spoilt": {SHARDS[0]: 1000}}, {"StoreError"}, "nothing of them is kept"),
    "spoilt settings": ({"spoilt": {"config.json": 1000}}, {"StoreError"}, "config.json"),
    "spoilt once": ({"spoilt": {SHARDS[1]: 1, "config.json": 1}}, {None}, ""),
    "moved": ({}, {None}, ""),
    "another commit": ({"claims": ELSEWHERE}, {"HubUnreachable"}, "do not belong together"),
    "waits": ({"asks_to_wait": 7200}, {"HubUnreachable"}, "asks to wait 7200 s"),
    "portal": ({"portal": True}, {"HubUnreachable"}, "is no hub"),
}
SPOILT = {"spoilt", "spoilt settings", "spoilt once"}


def draw(seed):
    """The kind of hub, its repository, the revision that is asked for."""
    draws = Random(f"hub {seed}")
    kind = list(KINDS)[seed % len(KINDS)]
    wrong = dict(KINDS[kind][0])
    if "gone_after" in wrong:
        wrong["gone_after"] = draws.randrange(12)
    repo = model_repo(seed, share=draws.choice([0.0, 0.1, 0.3, 0.5]), **wrong)
    if kind == "moved":
        repo.moves_to = repo.refs["v1"]
    return kind, repo, "v9" if kind == "revision" else draws.choice([None, "main", "v1"])


def judge(kind, repo, name, said, folder):
    """Whether a hub of this kind may come to this."""
    _, outcomes, words = KINDS[kind]
    outcome = said.get("kind")
    if outcome is None:
        assert None in outcomes or kind == "gone", said
        assert digest_of(repo.commits[said["commit"]], folder) == said["digest"]
        return
    assert outcome in outcomes or (outcome == "HubUnreachable" and repo.share), said
    assert f"model hf://{name}" in said["words"], said
    if not repo.share:
        assert words in said["words"], said


def missing(one, repo, name, commit):
    """Bytes of the large files that the cache lacks, by name."""
    files = {shard: repo.commits[commit][shard] for shard in SHARDS}
    here = {shard: one.kept(name, hashlib.sha256(files[shard]).hexdigest()) for shard in SHARDS}
    return {shard: len(files[shard]) - here[shard] for shard in SHARDS}


def follow(hub, one, seed, folder):
    """One schedule: asked up to three times while the hub fails, then once of a healthy one. Whether a part was kept."""
    kind, repo, revision = draw(seed)
    name = f"acme/model{seed}"
    if kind != "private":
        hub.repos[name] = repo
    for nth in range(3):
        said = one.fetch(f"hf://{name}", revision)
        judge(kind, repo, name, said, folder / f"{seed}-{nth}")
        assert said["slept"] <= 1000, said
    hub.repos[name] = repo
    repo.heal()
    revision = None if revision == "v9" else revision
    commit = repo.refs[revision or "main"]
    lacks = missing(one, repo, name, commit)
    said = one.fetch(f"hf://{name}", revision)
    assert (said.get("commit"), said.get("kind")) == (commit, None), said
    assert digest_of(repo.commits[commit], folder / f"{seed}-healed") == said["digest"]
    sent = {shard: repo.sent[shard] for shard in SHARDS}
    assert sent == lacks or kind in SPOILT, (kind, sent, lacks)
    return any(0 < lacks[shard] < len(repo.commits[commit][shard]) for shard in SHARDS)


def follow_all(seeds, folder):
    """Seeds whose repeat went on within a file."""
    with open_hub() as hub, asker(hub.address, folder / "home") as one:
        return [seed for seed in seeds if follow(hub, one, seed, folder)]


def test_hubs_that_fail_as_drawn_give_the_right_bytes_or_are_refused(tmp_path):
    assert follow_all(range(QUICK), tmp_path), "no repeat went on within a file"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(QUICK, ALL, PART))
def test_more_hubs_that_fail_as_drawn_give_the_right_bytes_or_are_refused(tmp_path, first):
    follow_all(range(first, min(first + PART, ALL)), tmp_path)

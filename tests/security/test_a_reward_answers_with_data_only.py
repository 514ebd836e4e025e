"""The attacker's wish: a reward function whose answer runs code in the actor, or fills its memory."""

import pytest

from rollout.errors import RewardError
from rollout.rewards.host import RewardHost
from rollout.rewards.source import RewardSource
from rollout.types import Completion, Message

HEAD = "import os, pickle, struct, sys\nanswers = int(sys.argv[2])\n"
PICKLE = """
class Evil:
    def __reduce__(self):
        return (open, ({mark!r}, "w"))
def judge(prompts, completions, rows):
    body = pickle.dumps(Evil())
    os.write(answers, struct.pack("<Q", len(body)) + body)
    return [0.0] * len(rows)
"""
LARGE = """
def judge(prompts, completions, rows):
    os.write(answers, struct.pack("<Q", 1 << 60))
    return [0.0] * len(rows)
"""
DEEP = """
def judge(prompts, completions, rows):
    body = b"\\x91" * 200_000
    os.write(answers, struct.pack("<Q", len(body)))
    while body:
        body = body[os.write(answers, body):]
    return [0.0] * len(rows)
"""
OBJECT = """
class Evil(str):
    def __reduce__(self):
        return (open, ({mark!r}, "w"))
def judge(prompts, completions, rows):
    return [Evil()]
"""
LONG = """
def judge(prompts, completions, rows):
    raise ValueError("x" * 10_000_000)
"""


def ask(tmp_path, text):
    mark = tmp_path / "mark"
    (tmp_path / "mine.py").write_text(HEAD + text.replace("{mark!r}", repr(str(mark))))
    source = RewardSource(name="mine", path="mine.py", function="judge", folders=(tmp_path,))
    host = RewardHost(source)
    prompt = (Message(role="user", content="1+1="),)
    completion = Completion(token_ids=(1,), logprobs=(-0.1,), finish="stop")
    try:
        return host.score([prompt], [completion], [{"answer": "2"}])
    finally:
        host.close()
        assert not mark.exists(), "code of the child ran in the parent"


@pytest.mark.process
@pytest.mark.parametrize(
    ("text", "says"),
    [(PICKLE, "sent no answer"), (LARGE, "expected at most"), (DEEP, "sent no answer")],
    ids=["pickle", "large", "deep"],
)
def test_a_frame_is_written_past_the_protocol(tmp_path, text, says):
    with pytest.raises(RewardError, match=says):
        ask(tmp_path, text)


@pytest.mark.process
def test_an_object_comes_to_life_in_the_actor(tmp_path):
    try:
        (value,) = ask(tmp_path, OBJECT)
    except RewardError as error:
        assert "cannot be sent" in str(error)
    else:
        assert type(value) is str


@pytest.mark.process
def test_an_error_is_as_long_as_a_book(tmp_path):
    with pytest.raises(RewardError) as found:
        ask(tmp_path, LONG)
    assert len(str(found.value)) < 10_000

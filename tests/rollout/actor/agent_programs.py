"""Small agents of the standard library, and the loop that plays them with replies that a test says."""

from actor_fakes import END, LetterRenderer, SayingEngine, make_task

from rollout.actor.runner import RunnerParts, play
from rollout.environments.agents.environment import AgentBuilder
from rollout.environments.agents.program import AgentProgram, VerifierProgram
from rollout.types import SamplingParams

KIT = """
import http.client, json, os, sys, time

KEY = os.environ["OPENAI_API_KEY"]

def post(path, body, key=KEY, headers=None):
    line = http.client.HTTPConnection("127.0.0.1", 8000, timeout=60)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    line.request("POST", path, data, {"Authorization": "Bearer " + key, **(headers or {})})
    answer = line.getresponse()
    return answer.status, answer.read().decode()

def chat(messages, **more):
    status, body = post("/v1/chat/completions", {"model": "m", "messages": messages, **more})
    if status != 200:
        sys.exit("%d %s" % (status, body))
    return json.loads(body)["choices"][0]["message"]

def user(text):
    return {"role": "user", "content": text}
"""
PYTHON = ("python3", "agent.py")


def agent(text, verifier=None, **settings):
    """The program of an agent, and of what judges it."""
    judge = None
    if verifier is not None:
        files = (("test.py", verifier.encode()),)
        judge = VerifierProgram(command=("python3", "/tests/test.py"), files=files, seconds=20)
    files = (("agent.py", (KIT + text).encode()),)
    return AgentProgram(command=PYTHON, files=files, verifier=judge, **settings)


def row(question="q"):
    return {"messages": [{"role": "user", "content": question}], "answer": "a"}


async def play_agent(program, say, samples=1, **more):
    """The episodes of one task, and the engine that they were drawn from."""
    engine = SayingEngine(say)
    stage = RunnerParts(
        engine=engine,
        renderer=LetterRenderer(),
        builders=lambda task: AgentBuilder(program=program),
        seed=7,
        **more,
    )
    task = make_task(0, samples=samples, row=row(), sampling=SamplingParams(max_new_tokens=400))
    (played,) = await play([task], stage)
    return played, engine


def written(token_ids):
    """Tokens as text; the end of a turn is a full stop."""
    return "".join(chr(token) if token != END else "." for token in token_ids)

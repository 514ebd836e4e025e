"""The attacker is the policy, whose program is rewarded for passing tests: it wants to pass them without doing the work."""

from __future__ import annotations

import asyncio

import pytest

from rollout.rewards.code_tests.running import ProgramBounds, run_tests
from rollout.rewards.code_tests.tasks import read_task
from rollout.tools.sandbox.chosen import bubblewrap

pytestmark = pytest.mark.process

CASE = "assert solve(20) == 6765"
FORGERIES = {
    "ends before its tests": "import os; os._exit(0)",
    "ends politely": "raise SystemExit(0)",
    "prints a verdict": """
import os
for place in range(256):
    try: os.write(place, b'{"number": "", "cases": [{"became": "passed"}]}\\n')
    except OSError: pass
def solve(n): return 0
""",
    "equals everything": """
class Equal:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = None
def solve(n): return Equal()
""",
    "is a number that equals everything": """
class Equal(int):
    def __eq__(self, other): return True
    __hash__ = int.__hash__
def solve(n): return Equal(1)
""",
    "hides the assertion": """
import builtins, sys
builtins.AssertionError = type('AssertionError', (BaseException,), {})
sys.excepthook = lambda *_: None
def solve(n): raise AssertionError
""",
    "looks for its tests": """
import gc, os, sys
def solve(n):
    texts = [one for one in gc.get_objects() if isinstance(one, dict)]
    for pid in (1, os.getppid()):
        for name in ('mem', 'environ', 'maps', 'fd/0', 'fd/1', 'cwd/tests.py'):
            try: texts.append(open('/proc/%d/%s' % (pid, name), 'rb').read(1 << 20))
            except (OSError, ValueError): pass
    return 6765 if any('solve(20) == ' + '6765' in repr(one) for one in texts) else 0
""",
    "writes where its tests answer": """
import os
def solve(n):
    for name in os.listdir('/proc'):
        for place in range(8):
            try:
                with open('/proc/%s/fd/%d' % (name, place), 'wb') as file:
                    file.write(b'{"number": "x", "cases": [{"became": "passed"}]}')
            except OSError: pass
    return 0
""",
    "ends who judges it": """
import os, signal
def solve(n):
    os.kill(os.getppid(), signal.SIGKILL)
    return 6765
""",
    "stops who judges it": """
import os, signal
def solve(n):
    for number in (signal.SIGALRM, signal.SIGSTOP):
        os.kill(os.getppid(), number)
    return 0
""",
    "answers before it is asked": """
import os
for place in range(3, 64):
    try: os.write(place, b'{"value": null}\\n' * 64)
    except OSError: pass
def solve(n): return 0
""",
    "takes all memory": "x = [bytearray(1 << 20) for _ in range(1 << 20)]",
    "takes all processes": """
import os
def solve(n):
    while True: os.fork()
""",
    "floods the answer": """
def solve(n):
    import sys
    return 'x' * (1 << 29)
""",
}


@pytest.fixture(scope="module", autouse=True)
def sandboxes(sandbox_host):
    """Skipped by name where there are none."""


def judge(program: str) -> str:
    task = read_task({"tests": [CASE]}, "tests")
    bounds = ProgramBounds(seconds=3.0, memory_bytes=256 << 20)
    (verdict,) = asyncio.run(run_tests(bubblewrap(), task, program, bounds))
    return verdict.became


@pytest.mark.parametrize("forgery", FORGERIES, ids=[name.replace(" ", "-") for name in FORGERIES])
def test_a_program_that_does_not_do_the_work_does_not_pass(forgery):
    assert judge(FORGERIES[forgery]) != "passed"


def test_one_that_does_the_work_passes():
    assert (
        judge(
            "def solve(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a"
        )
        == "passed"
    )

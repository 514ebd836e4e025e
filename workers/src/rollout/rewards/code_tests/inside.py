"""Runs test statements against a program, inside a sandbox: the tests in this process, the program in a child of it.

Read as text by ``rollout.rewards.code_tests.running`` and run by the sandbox's own Python (3.9 or newer) with the
standard library alone; never imported. The program shares no interpreter with its tests: it cannot patch, read or skip
them, and all that it says is the value of a call. Plain values cross as JSON with tags; anything else stays with the
program and is called, read, indexed and iterated from here. This process cannot be read or written from inside
(undumpable), and its verdict bears a number that the program was never told. ``SOURCE`` is this text, given by whoever runs it.
"""

from __future__ import annotations

import ast
import builtins
import ctypes
import io
import json
import os
import signal
import subprocess
import sys
import types
from functools import partial
from typing import Any, Callable, Dict, Iterator, List

PR_SET_DUMPABLE = 4
ITEMS_MAX = 1_000_000
MESSAGE_CHARACTERS_MAX = 200
CHILD = "import sys; SOURCE = sys.argv[1]; exec(SOURCE); serve(sys.argv[2])"
SOURCE: str
Frame = Dict[str, Any]


# -- values --------------------------------------------------------------------------------------------

COLLECTIONS: Dict[str, Any] = {"list": list, "tuple": tuple, "frozenset": frozenset, "set": set}

SINGLE: Dict[str, Any] = {
    "int": (int, hex, lambda told: int(told, 16)),
    "float": (float, float.hex, float.fromhex),
    "complex": (
        complex,
        lambda value: [float.hex(value.real), float.hex(value.imag)],
        lambda told: complex(*(float.fromhex(one) for one in told)),
    ),
    "bytes": ((bytes, bytearray), lambda value: bytes(value).hex(), bytes.fromhex),
    "range": (
        range,
        lambda value: [hex(one) for one in (value.start, value.stop, value.step)],
        lambda told: range(*(int(one, 16) for one in told)),
    ),
}
"""By tag: of which type, how it is told, and how it is read."""


def pack(value: Any, keep: Callable[[Any], int]) -> Any:
    """A value as JSON: a plain one by what it holds, another by the number that ``keep`` gives it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    for tag, (kind, tell, _) in SINGLE.items():
        if isinstance(value, kind):
            return {tag: tell(value)}
    if isinstance(value, dict):
        pairs = bounded(dict.items(value))
        return {"dict": [[pack(one, keep) for one in pair] for pair in pairs]}
    for tag, kind in COLLECTIONS.items():
        if isinstance(value, kind):
            return {tag: [pack(one, keep) for one in bounded(kind.__iter__(value))]}
    return {"kept": keep(value)}


def bounded(items: Any) -> List[Any]:
    """The items. Raises ValueError for more than can be told."""
    found = []
    for one in items:
        found.append(one)
        if len(found) > ITEMS_MAX:
            raise ValueError("more than %d items" % ITEMS_MAX)
    return found


def unpack(value: Any, find: Callable[[int], Any]) -> Any:
    """What ``pack`` wrote; ``find`` gives what stands behind a number."""
    if not isinstance(value, dict):
        return value
    ((tag, held),) = value.items()
    if tag in COLLECTIONS:
        return COLLECTIONS[tag]([unpack(one, find) for one in held])
    if tag == "dict":
        return {unpack(key, find): unpack(one, find) for key, one in held}
    return find(held) if tag == "kept" else SINGLE[tag][2](held)


# -- the program's side --------------------------------------------------------------------------------


def serve(program: str) -> None:
    """Run the program as a module, then answer calls until the pipe closes."""
    asked = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDWR)
    for place in (0, 1, 2):
        os.dup2(nothing, place)
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    kept: List[Any] = []

    def tell(work: Callable[[], Frame]) -> bool:
        try:
            frame, well = work(), True
        except BaseException as error:  # a program may raise anything, also at its end
            frame, well = {"error": type(error).__name__, "message": said(error)}, False
        answers.write(json.dumps(frame) + "\n")
        answers.flush()
        return well

    def begin() -> Frame:
        exec(compile(program, "solution.py", "exec"), module.__dict__)
        return {"value": None}

    if tell(begin):
        for line in asked:
            tell(partial(answer, json.loads(line), module, kept))


def answer(frame: Frame, module: Any, kept: List[Any]) -> Frame:
    """One operation on what the program made."""

    def keep(value: Any) -> int:
        kept.append(value)
        return len(kept) - 1

    if frame["do"] == "name":
        return {"value": pack(vars(module)[frame["name"]], keep)}
    target = kept[frame["on"]]
    arguments = [unpack(one, kept.__getitem__) for one in frame["arguments"]]
    named = {name: unpack(one, kept.__getitem__) for name, one in frame["named"].items()}
    before = [pack(one, keep) for one in arguments]
    value = OPERATIONS[frame["do"]](target, *arguments, **named)
    after = [pack(one, keep) for one in arguments]
    changed = {str(place): one for place, one in enumerate(after) if one != before[place]}
    return {"value": pack(value, keep), "changed": changed}


OPERATIONS: Dict[str, Callable[..., Any]] = {
    "call": lambda target, *arguments, **named: target(*arguments, **named),
    "read": getattr,
    "write": setattr,
    "item": lambda target, key: target[key],
    "put": lambda target, key, value: target.__setitem__(key, value),
    "size": len,
    "iterate": iter,
    "next": next,
}


def said(error: BaseException) -> str:
    """What an error says, in few words."""
    try:
        return str(error)[:MESSAGE_CHARACTERS_MAX]
    except Exception:  # what a program raised may not know what it says
        return ""


# -- the tests' side -----------------------------------------------------------------------------------


class Late(BaseException):
    """A case is past its seconds; no ``except Exception`` of a test keeps it."""


class Gone(BaseException):
    """The program has ended itself, or said what is no answer; likewise."""


class Program:
    """The child process with the program. After its end the next call begins a fresh one."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._process: Any = None

    def begin(self) -> None:
        """Start it and run the program, unless that is done. Raises what the program raised, or Gone."""
        if self._process is not None and self._process.poll() is None:
            return
        self.end()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", CHILD, SOURCE, self._text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        try:
            self._hear()
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End it, and what shares its session."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()

    def ask(self, frame: Frame, arguments: Any = (), named: Any = None) -> Any:
        """The value of one operation. Lists, sets and dictionaries that a call changed are changed here, too."""
        packed = [pack(one, handed) for one in arguments]
        by_name = {name: pack(one, handed) for name, one in (named or {}).items()}
        try:
            line = json.dumps({**frame, "arguments": packed, "named": by_name})
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except OSError:
            raise Gone("the program has ended")
        told = self._hear()
        for place, changed in told.get("changed", {}).items():
            put_back(arguments[int(place)], unpack(changed, self._find))
        return unpack(told["value"], self._find)

    def _hear(self) -> Frame:
        try:
            frame = json.loads(self._process.stdout.readline())
        except ValueError:
            raise Gone("the program has ended")
        if not isinstance(frame, dict) or not frame.keys() & {"value", "error"}:
            raise Gone("the program said what is no answer")
        if "error" in frame:
            raise raised(str(frame["error"]), str(frame.get("message")))
        return frame

    def _find(self, number: int) -> Any:
        return ProgramObject(self, int(number))


def raised(name: str, message: str) -> BaseException:
    """Python's own error of that name, for tests that expect one; RuntimeError for others, Gone for ends."""
    kind = getattr(builtins, name, None)
    text = "%s: %s" % (name, message)
    if not isinstance(kind, type) or not issubclass(kind, BaseException):
        return RuntimeError(text)
    if not issubclass(kind, Exception):
        return Gone(text)
    try:
        return kind(message)
    except TypeError:
        return RuntimeError(text)


def handed(value: Any) -> int:
    """The number of what the program made itself. Raises TypeError for what else is no plain value."""
    if type(value) is not ProgramObject:
        raise TypeError("a test hands over a %s, which no program is given" % type(value).__name__)
    return object.__getattribute__(value, "_number")


def put_back(argument: Any, changed: Any) -> None:
    """Make a test's own argument what the call made of it."""
    if isinstance(argument, list) and isinstance(changed, list):
        argument[:] = changed
    elif isinstance(argument, (dict, set)) and type(argument) is type(changed):
        argument.clear()
        argument.update(changed)


class ProgramObject:
    """Something that the program made and that is no plain value. It equals nothing but itself, whatever it says."""

    def __init__(self, program: Program, number: int) -> None:
        object.__setattr__(self, "_program", program)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return on(self, "call", arguments, named)

    def __getattr__(self, name: str) -> Any:
        return on(self, "read", [name])

    def __setattr__(self, name: str, value: Any) -> None:
        on(self, "write", [name, value])

    def __getitem__(self, key: Any) -> Any:
        return on(self, "item", [key])

    def __setitem__(self, key: Any, value: Any) -> None:
        on(self, "put", [key, value])

    def __len__(self) -> int:
        return on(self, "size")

    def __bool__(self) -> bool:
        return True

    def __next__(self) -> Any:
        return on(self, "next")

    def __iter__(self) -> Iterator[Any]:
        items = on(self, "iterate")
        while True:
            try:
                yield on(items, "next")
            except StopIteration:
                return


def on(it: ProgramObject, what: str, arguments: Any = (), named: Any = None) -> Any:
    """One operation on it."""
    program = object.__getattribute__(it, "_program")
    number = object.__getattribute__(it, "_number")
    return program.ask({"do": what, "on": number}, arguments, named)


def free_names(tree: ast.AST) -> List[str]:
    """Names that statements read and neither bind nor find among Python's own: the program's."""
    read, bound = set(), set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound.update((one.asname or one.name).split(".")[0] for one in node.names)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    return sorted(read - bound)


def run_case(program: Program, case: str) -> None:
    """Run one case's statements. Raises what they raise."""
    tree = ast.parse(case)
    program.begin()
    given: Frame = {"__name__": "tests"}
    for name in free_names(tree):
        given[name] = program.ask({"do": "name", "name": name})
    exec(compile(tree, "tests.py", "exec"), given)


def judge(program: Program, case: str, seconds: float) -> Frame:
    """What became of one case (``passed``, ``failed``, ``error``, ``time``), and why in few words."""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            run_case(program, case)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Late:
        program.end()
        return {"became": "time", "why": "more than %g s" % seconds}
    except Gone as error:
        program.end()
        return {"became": "error", "why": said(error)}
    except AssertionError as error:
        return {"became": "failed", "why": said(error)}
    except BaseException as error:  # a test may raise anything
        return {"became": "error", "why": "%s: %s" % (type(error).__name__, said(error))}
    return {"became": "passed", "why": ""}


def main() -> None:
    """Read a program and its cases, and tell the verdict."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    asked = json.load(sys.stdin)
    verdicts, sys.stdout = sys.stdout, io.StringIO()

    def late(*_: Any) -> None:
        raise Late

    signal.signal(signal.SIGALRM, late)
    program = Program(asked["program"])
    found = [judge(program, case, asked["seconds"]) for case in asked["cases"]]
    program.end()
    verdicts.write(json.dumps({"number": asked["number"], "cases": found}))

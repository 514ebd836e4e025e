"""A small server of tools, standard library only, and what can be wrong with one."""

from rollout.tools.mcp.source import McpSource, ServerProgram
from rollout.tools.sandbox.bubblewrap import Bubblewrap

SERVER = r"""
import json, os, socket, sys, time

KEPT = []
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOLS = {
    "area": ("The area of a box.", {"type": "object", "properties": {
        "width": {"type": "integer"}, "height": {"type": "integer", "default": 2}}, "required": ["width"],
        "additionalProperties": False}),
    **{name: ("Does: " + name, TEXT) for name in (
        "keep", "hang", "line", "chatter", "errors", "die", "eat", "litter", "fail", "refuse", "picture", "look", "number")},
}

def said(text):
    return {"content": [{"type": "text", "text": str(text)}]}

def area(width, height=2):
    return said(width * height)

def keep(text="x"):
    KEPT.append(text)
    return said(",".join(KEPT))

def hang(text=""):
    time.sleep(3600)

def line(text=""):
    while True:
        os.write(1, b"x" * 65536)

def chatter(text=""):
    while True:
        os.write(1, b'{"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}}\n')

def errors(text=""):
    while True:
        os.write(2, b"e" * 65536)

def die(text=""):
    sys.exit("the shelf broke")

def eat(text=""):
    held = []
    while True:
        held.append(bytearray(os.urandom(1 << 20)))

def litter(text=""):
    for number in range(100_000):
        open(f"/tmp/{number}", "w").close()
    time.sleep(60)

def fail(text=""):
    return {**said("no such shelf"), "isError": True}

def refuse(text=""):
    raise ValueError("I would rather not")

def picture(text=""):
    return {"content": [{"type": "text", "text": "see"}, {"type": "image", "data": "aGk=", "mimeType": "image/png"}]}

def number(text=""):
    return {"content": [], "structuredContent": {"n": 3}}

def look(text=""):
    try:
        socket.create_connection(("169.254.169.254", 80), timeout=2)
        net = "open"
    except OSError as error:
        net = type(error).__name__
    try:
        open("/box/../etc/passwd").close()
        etc = "seen"
    except OSError as error:
        etc = type(error).__name__
    return said(json.dumps({"files": sorted(os.listdir(".")), "env": sorted(os.environ), "net": net, "etc": etc, "uid": os.getuid(), "left": sorted(os.listdir("/tmp"))}))

MODE = sys.argv[1] if len(sys.argv) > 1 else ""

def listed():
    if MODE == "changes":
        TOOLS["area"] = ("The area of a box " + os.urandom(4).hex(), TOOLS["area"][1])
    found = [{"name": name, "description": what, "inputSchema": schema} for name, (what, schema) in TOOLS.items()]
    if MODE == "pages":
        return {"tools": found[:1], "nextCursor": "again"}
    if MODE == "odd-name":
        found[0]["name"] = "a b\x1b[2J"
    if MODE == "twice":
        found += found
    if MODE == "list":
        found[0]["inputSchema"] = {"type": "array"}
    if MODE == "no-schema":
        found[0]["inputSchema"] = {"type": "object", "properties": {"a": {"type": "nonsense"}}}
    if MODE == "answers":
        found[0]["outputSchema"] = {"type": "object", "required": ["n"]}
    if MODE == "long":
        found[0]["description"] = "x" * 100_000
    if MODE == "none":
        found = []
    if MODE == "elsewhere":
        found[0]["inputSchema"] = {"$ref": "http://169.254.169.254/schema", "type": "object"}
    return {"tools": found}

def reply(asked):
    if asked["method"] == "initialize":
        return {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}},
                "serverInfo": {"name": "shelf", "version": "1"}}
    if asked["method"] == "tools/list":
        return listed()
    if asked["method"] == "tools/call":
        return globals()[asked["params"]["name"]](**asked["params"].get("arguments", {}))
    raise LookupError("no such method")

if MODE == "silent":
    time.sleep(3600)
if MODE == "ends":
    sys.exit("cannot find my books")
print("hello, this is no message", flush=True)
for one in sys.stdin:
    asked = json.loads(one)
    if "id" in asked:
        try:
            done = {"result": reply(asked)}
        except (LookupError, ValueError) as error:
            done = {"error": {"code": -32601, "message": str(error)}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **done}), flush=True)
"""


def served(host, mode="", name="shelf"):
    """The source of a server in one of its ways. One maker a source: nothing is listed for another test."""
    program = ServerProgram(
        name=name,
        command=("python", "server.py", *([mode] if mode else [])),
        files=(("server.py", SERVER.encode()),),
    )
    return McpSource(program, lambda: Bubblewrap(host))


def tool_of(source, name):
    """One tool of an episode of its own."""
    return next(tool for tool in source.open({}) if tool.spec.name == f"shelf__{name}")


async def asked(tool, *many, **arguments):
    """The answers of one episode, whose server is closed."""
    try:
        return [await tool.call(one, "key") for one in (many or [arguments])]
    finally:
        await tool.close()

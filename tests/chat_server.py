"""A server on this machine that speaks chat completions, and misbehaves as it is told to."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ChatServer:
    """``say`` makes a reply (or a status) of the last message; ``fail`` are statuses that come first; ``raw`` replaces bodies."""

    def __init__(self):
        self.say = lambda asked: asked
        self.fail = []
        self.raw = None
        self.headers = []
        self.reply_headers = {}
        self.asked = []
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.headers.append(dict(self.headers))
                status, sent = outer.answer(body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(sent)))
                for name, value in outer.reply_headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(sent)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def answer(self, body):
        """Status and body of one call."""
        with self._lock:
            self.asked.append(body)
            if self.fail:
                return self.fail.pop(0), b"not now"
            said = self.say(body["messages"][-1]["content"])
        if isinstance(said, int):
            return said, b"no"
        if self.raw is not None:
            return 200, self.raw.encode()
        choice = {"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 20}
        return 200, json.dumps({"choices": [choice], "usage": usage}).encode()

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

"""A light HTTP server that answers like `vllm serve`: health, models, version, streamed completions.

Standard library only. It stands in for an engine where the harness is under test (starts, kills, resume), never where
speed is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODEL = "light"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    itl_s = 0.0
    ttft_s = 0.0
    ready_at = 0.0

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/health":
            self._json({}, 200 if time.monotonic() >= self.ready_at else 503)
        elif self.path == "/v1/models":
            self._json({"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 4096}]})
        elif self.path == "/version":
            self._json({"version": "light-1"})
        else:
            self._json({"error": "not found"}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        chat = self.path.endswith("/chat/completions")
        if not chat and not self.path.endswith("/completions"):
            self._json({"error": "not found"}, 404)
            return
        prompt = body.get("messages") if chat else body.get("prompt", "")
        count = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
        words = tokens(prompt, count)
        usage = {"prompt_tokens": max(len(str(prompt).split()), 1), "completion_tokens": count}
        usage["total_tokens"] = sum(usage.values())
        time.sleep(self.ttft_s)
        if not body.get("stream"):
            choice = {"index": 0, "finish_reason": "length", "text": " ".join(words)}
            if chat:
                choice["message"] = {"role": "assistant", "content": choice.pop("text")}
            self._json(self._envelope(chat, [choice], usage))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for index, word in enumerate(words):
            if index:
                time.sleep(self.itl_s)
            choice = {"index": 0, "finish_reason": "length" if index == count - 1 else None}
            choice |= {"delta": {"content": word + " "}} if chat else {"text": word + " "}
            self._event(json.dumps(self._envelope(chat, [choice], None)))
        self._event(json.dumps(self._envelope(chat, [], usage)))
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _envelope(self, chat: bool, choices: list[dict[str, object]], usage: object) -> dict[str, object]:
        kind = "chat.completion.chunk" if chat else "text_completion"
        return {"id": "x", "object": kind, "created": 0, "model": MODEL, "choices": choices, "usage": usage}

    def _event(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _json(self, value: object, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def tokens(prompt: object, count: int) -> list[str]:
    """Words that depend on the prompt and nothing else, so that equal work gives equal texts."""
    seed = hashlib.sha256(str(prompt).encode()).hexdigest()
    return [f"t{seed[i % 60 : i % 60 + 3]}" for i in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ttft-ms", type=float, default=1.0)
    parser.add_argument("--itl-ms", type=float, default=0.2)
    parser.add_argument("--ready-after-s", type=float, default=0.0)
    parser.add_argument("--say", default="")
    parser.add_argument("--die-at-start", action="store_true")
    args = parser.parse_args()
    if args.die_at_start:
        sys.exit("light server: told to die at start")
    if args.say:
        print(args.say, flush=True)
    Handler.ttft_s, Handler.itl_s = args.ttft_ms / 1e3, args.itl_ms / 1e3
    Handler.ready_at = time.monotonic() + args.ready_after_s
    server = ThreadingHTTPServer(("127.0.0.1", args.port), Handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()

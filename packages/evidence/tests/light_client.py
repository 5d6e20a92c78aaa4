"""A light benchmark client: sends a few completions one after the other and writes a `vllm bench serve` style file."""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from itertools import pairwise
from pathlib import Path


def one(host: str, port: int, prompt: str, tokens: int) -> tuple[float, list[float], str]:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    body = json.dumps({"model": "light", "prompt": prompt, "max_tokens": tokens, "stream": True})
    began = time.perf_counter()
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    times, text = [], ""
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            choices = json.loads(line[6:])["choices"]
            if choices:
                times.append(time.perf_counter() - began)
                text += choices[0]["text"]
    connection.close()
    return times[0], [b - a for a, b in pairwise(times)], text


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--fail", action="store_true")
    args = parser.parse_args()
    if args.fail:
        sys.exit("light client: told to fail")
    began = time.perf_counter()
    results = [one("127.0.0.1", args.port, f"prompt {i}", args.tokens) for i in range(args.requests)]
    duration = time.perf_counter() - began
    args.out.write_text(
        json.dumps(
            {
                "date": time.strftime("%Y%m%d-%H%M%S"),
                "backend": "openai",
                "model_id": "light",
                "num_prompts": args.requests,
                "request_rate": "inf",
                "max_concurrency": 1,
                "duration": duration,
                "completed": args.requests,
                "failed": 0,
                "ttfts": [ttft for ttft, _, _ in results],
                "itls": [itls for _, itls, _ in results],
                "latencies": [ttft + sum(itls) for ttft, itls, _ in results],
                "input_lens": [2] * args.requests,
                "output_lens": [args.tokens] * args.requests,
                "generated_texts": [text for _, _, text in results],
                "errors": [""] * args.requests,
            }
        )
    )


if __name__ == "__main__":
    main()

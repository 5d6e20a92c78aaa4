"""Result files of other tools, read as data: `vllm bench serve`, `vllm bench sweep` trees, GuideLLM, AIPerf."""

from __future__ import annotations

from .folder import read_folder, read_run

__all__ = ["read_folder", "read_run"]

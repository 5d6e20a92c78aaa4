"""Verified pairs of vLLM core and vllm-ascend plugin; checked hooks that go in and come out."""

__version__ = "0.1.0"

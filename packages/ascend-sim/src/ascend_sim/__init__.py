"""The real vllm-ascend Model Runner V2 in the real vLLM engine on a plain CPU."""

__version__ = "0.1.0"

"""Runner hook for vllm-ascend Model Runner V2: decode that waits for nothing it need not wait for."""

__version__ = "0.1.0"

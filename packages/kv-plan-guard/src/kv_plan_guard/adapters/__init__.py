"""The only place of this package that meets torch, vLLM and vllm-ascend; everything here is imported late."""

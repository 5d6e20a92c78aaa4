"""The platform and the worker that vLLM loads in place of the NPU ones."""

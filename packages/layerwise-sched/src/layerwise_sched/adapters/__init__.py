"""The hooks on vllm-ascend's layer-wise path: the only place of this package that meets it, by name, at run time."""

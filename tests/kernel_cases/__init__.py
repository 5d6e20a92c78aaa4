"""Random launches of each fast kernel, for the tests that compare it with Triton's interpreter."""

from kernel_cases import drafts, inputs, sampling, tables
from kernel_cases.base import CASES, MAX_REQS, SEEDS, STEPS, VOCAB, Build, Case, current, f32

__all__ = ["CASES", "MAX_REQS", "SEEDS", "STEPS", "VOCAB", "Build", "Case", "current", "f32"]
__all__ += ["drafts", "inputs", "sampling", "tables"]

"""Timeline, head-of-line evidence and policies for layer-wise KV loads."""

__version__ = "0.1.0"

"""A sanitizer for KV address plans."""

__version__ = "0.1.0"

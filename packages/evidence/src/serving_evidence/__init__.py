"""Serving performance claims that carry their proof."""

__version__ = "0.1.0"

"""Timelines in the formats of trace viewers; tests check each writer's output against the format's own rules."""

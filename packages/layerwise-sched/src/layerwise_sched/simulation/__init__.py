"""Discrete-event simulation of a layer-wise receive thread in exact integer nanoseconds; replay of recorded runs."""

from layerwise_sched.simulation.engine import Simulated, simulate
from layerwise_sched.simulation.layout import buffers_in_use, make_plan
from layerwise_sched.simulation.replay import workload_of
from layerwise_sched.simulation.workload import Spec, StepTimes, Workload, generate

__all__ = [
    "Simulated",
    "Spec",
    "StepTimes",
    "Workload",
    "buffers_in_use",
    "generate",
    "make_plan",
    "simulate",
    "workload_of",
]

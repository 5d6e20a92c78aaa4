"""The errors of this package: one base class, each leaf also a builtin so that callers may catch either."""


class LayerwiseError(Exception):
    """Base of every error this package raises."""


class ConfigError(LayerwiseError, ValueError):
    """A value of the `layerwise_sched` key is not what it must be; names the field, the value and the fix."""


class UnsupportedError(LayerwiseError, RuntimeError):
    """This pair or this connector cannot be observed or ordered; raised under `strict` and for the timeline."""


class TimelineError(LayerwiseError, ValueError):
    """A timeline file, or the rows in it, are not what they must be; names the file, the row and the reason."""


class WorkloadError(LayerwiseError, ValueError):
    """A simulated workload cannot exist; names the field, the value and what was expected."""


class PolicyError(LayerwiseError, RuntimeError):
    """A policy gave an answer that no rule allows, or could not be loaded; names the policy."""

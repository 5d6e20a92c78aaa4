"""The errors of this package: one base class, each leaf also a builtin so that callers may catch either."""


class MetadataError(Exception):
    """Base of every error this package raises."""


class ConfigError(MetadataError, ValueError):
    """A value of the `mrv2_metadata` key is not what it must be; names the field, the value and the fix."""


class UnsupportedError(MetadataError, RuntimeError):
    """A combination of features that must not start, because its lengths cannot be made right."""


class DriftError(MetadataError, RuntimeError):
    """Host and device sequence lengths differ; carries the full report in its message."""


class ProxyError(MetadataError, AttributeError):
    """An attention builder asked the query_start_loc stand-in for something it does not answer."""

"""The one place that knows the version: the build, `thinwire.__version__` and the tests read it here."""

__version__ = "0.2.0"

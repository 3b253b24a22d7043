"""evenhand: even-handed models from uneven data."""

__version__ = "0.1.0"

"""evenhand: even-handed models from uneven data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evenhand.run.estimator import Classifier
    from evenhand.run.predicting import load

__version__ = "0.1.0"
__all__ = ["Classifier", "load"]

_HOMES = {"Classifier": "estimator", "load": "predicting"}


def __getattr__(name: str) -> Any:
    """These names bring torch with them, which ``import evenhand`` alone does not."""
    if name not in _HOMES:
        raise AttributeError(f"module 'evenhand' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"evenhand.run.{_HOMES[name]}"), name)

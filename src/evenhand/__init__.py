"""evenhand: even-handed models from uneven data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evenhand.run.predicting import load

__version__ = "0.1.0"
__all__ = ["load"]


def __getattr__(name: str) -> Any:
    """``evenhand.load`` brings torch with it, which ``import evenhand`` alone does not."""
    if name != "load":
        raise AttributeError(f"module 'evenhand' has no attribute '{name}'")
    from evenhand.run.predicting import load

    return load

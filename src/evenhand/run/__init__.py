"""Recipes and the training loop. Names load on first use, so that importing a room does not import the house."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evenhand.run.loop import fit
    from evenhand.run.opening import open_run
    from evenhand.run.recipe import Recipe, load_recipe
    from evenhand.run.settings import Run
    from evenhand.run.training import train

_HOMES = {
    "fit": "loop", "load_recipe": "recipe", "open_run": "opening", "Recipe": "recipe", "Run": "settings",
    "train": "training",
}  # fmt: skip

__all__ = ["Recipe", "Run", "fit", "load_recipe", "open_run", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'evenhand.run' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"evenhand.run.{_HOMES[name]}"), name)

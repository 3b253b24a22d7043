"""Defaults that follow from other values, in a recipe whose every key is written out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ValidationError

from evenhand.errors import UserError
from evenhand.methods import method_class
from evenhand.run.tables import flatten


def follow(before: Any, after: Any, changed: Collection[str]) -> None:
    """Take from the method table ``after`` what stood in ``before`` at a default that goes with another value.

    A run's recipe has every key written out: under another adversary its learning rate must not stay the old one's.
    What was ``changed`` stays, as does all of a recipe that somebody wrote.
    """
    if not (isinstance(before, dict) and isinstance(after, dict)) or before.get("name") != after.get("name"):
        return
    try:
        table = method_class(str(after.get("name"))).table
        old, new = flatten(table.following(before)), flatten(table.following(after))
        plain = flatten(table().model_dump(exclude_none=True)) if old != new else {}
    except (UserError, ValidationError):
        return  # it is told of as it was written
    written = flatten(before)
    if old == new or not plain.keys() <= written.keys():
        return
    kept = {name.removeprefix("method.") for name in changed}
    for key in old.keys() | new.keys():
        if written.get(key) != old.get(key, plain.get(key)):
            continue
        twins = [like + key.removeprefix(of) for like, of in table.takes_after.items() if key.startswith(f"{of}.")]
        for name in {key, *twins} - kept:
            if written.get(name) == written.get(key):
                _remove(after, name.split("."))


def _remove(tree: Mapping[str, Any], path: list[str]) -> None:
    for part in path[:-1]:
        tree = tree.get(part) or {}
    if isinstance(tree, dict):
        tree.pop(path[-1], None)

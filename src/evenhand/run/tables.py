"""Trees of plain values, as TOML holds them: laid over each other, flattened, written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from evenhand.errors import UserError


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"run": {"epochs": 5}} -> {"run.epochs": 5}"""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dicts, ``over`` winning; an empty dict empties the one below."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping) and value
        merged[key] = merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


def to_toml(tree: Mapping[str, Any], prefix: str = "") -> str:
    """TOML of nested dicts of plain values: scalars first, then one table for each dict."""
    lines = [f"{_key(k)} = {literal(v)}" for k, v in tree.items() if not isinstance(v, Mapping)]
    text = "\n".join(lines) + "\n" if lines else ""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            name = f"{prefix}{_key(key)}"
            text += f"\n[{name}]\n" * (not value or any(not isinstance(v, Mapping) for v in value.values()))
            text += to_toml(value, f"{name}.")
    return text


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("-", "a").replace("_", "a").isalnum()
    return key if bare else literal(key)


def literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(literal(v) for v in value) + "]"
    if isinstance(value, str):  # JSON's escapes are TOML's, but for pairs of surrogates and a bare delete
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def put(tree: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        if tree.get(part) is None:  # a table that is left out
            tree[part] = {}
        tree = tree[part]
        if not isinstance(tree, dict):
            raise UserError(f"--set {key}: '{part}' is a value, not a table")
    tree[last] = value


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The keys in which two trees differ."""
    a, b = flatten(one), flatten(other)
    return [key for key in {**a, **b} if a.get(key) != b.get(key)]

"""Trees of plain values, as TOML holds them: laid over each other, flattened, written."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from evenhand.errors import UserError
from evenhand.settings import WITHOUT_EFFECT

SLIP = 1e9  # bounds beyond it only catch slips of the pen


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"run": {"epochs": 5}} -> {"run.epochs": 5}; an empty dict is a value, which empties the one below."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        inside = isinstance(value, Mapping) and value
        flat |= flatten(value, f"{prefix}{key}.") if inside else {f"{prefix}{key}": value}
    return flat


def named(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What setting a table sets: the keys it names. A need, an empty table or one with a dot in a key is a value."""
    whole = key.partition(".")[0] == "needs"  # another recipe with the changes of the one before would be neither
    if isinstance(value, Mapping) and value and not whole and not any("." in inner for inner in value):
        for inner, part in value.items():
            yield from named(f"{key}.{inner}", part)
    else:
        yield key, value


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


def parse_override(text: str) -> tuple[str, Any]:
    """``key=value`` with a TOML value; what is not TOML is a string."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise UserError(f"--set '{text}' is not key=value; write for example --set run.epochs=5")
    try:
        return key.strip(), tomllib.loads(f"x = {value}")["x"]
    except ValueError:  # TOML's own, or a number that is too long for Python to read
        return key.strip(), value.strip()


def without_expectations(base: Mapping[str, Any], over: Mapping[str, Any], *, another: bool) -> dict[str, Any]:
    """A base without the numbers that are not of the recipe laid over it (``another``), variant by variant."""
    kept = {key: value for key, value in base.items() if key != "expect" or not another}
    variants = dict(base.get("variants", {}))
    for name, table in variants.items():
        changes = over.get("variants", {}).get(name)
        changed = isinstance(changes, Mapping) and any(map(_has_effect, flatten(changes)))
        if isinstance(table, Mapping) and (another or changed):
            variants[name] = {key: value for key, value in table.items() if key != "expect"}
    return {**kept, "variants": variants}


def _has_effect(key: str) -> bool:
    """Whether a key can change a result."""
    table, _, rest = key.partition(".")
    return table not in WITHOUT_EFFECT["recipe"] and not (table == "run" and rest in WITHOUT_EFFECT["run"])


def explained(recipe: BaseModel) -> str:
    """The recipe as TOML, defaults filled in, each key with its meaning."""
    return _explain(recipe, "").lstrip("\n")


def _explain(table: BaseModel, name: str) -> str:
    text, inner = f"\n[{name}]\n" if name else "", ""
    for key, field in type(table).model_fields.items():
        value = getattr(table, key)
        path = f"{name}.{key}" if name else key
        if isinstance(value, BaseModel):
            inner += _explain(value, path)
        elif key == "variants":
            inner += f"\n# variants: {', '.join(value)}\n" if value else ""
        elif isinstance(value, dict):
            tree = {k: v.model_dump() if isinstance(v, BaseModel) else v for k, v in value.items()}
            inner += f"\n# {path}: {field.description}\n" + to_toml({path: tree}) if value else ""
        else:
            line = f"# {key} = " if value is None else f"{key} = {literal(value)}"
            about = "see evenhand list methods" if path == "method.name" else field.description
            said = "; ".join(part for part in (about, choices(field)) if part)
            text += f"{line:<32}  # {said}\n" if said else f"{line}\n"
    return text + inner


def choices(field: FieldInfo) -> str:
    """What a key may be: the words there are, or the bounds of a number; the free ones say it in their description."""
    words, told = _words(field.annotation), set(re.split(r"[\s,:;()]+", field.description or ""))
    said = [f"one of {', '.join(words)}"] if len(words) > 1 and not set(words) <= told else []
    bounds = [bound for entry in field.metadata for bound in _bounds(entry)]
    return "; ".join(said + ([" and ".join(bounds)] if bounds else []))


def _words(annotation: Any) -> list[str]:
    """The literals inside a type."""
    if get_origin(annotation) is Literal:
        return [str(word) for word in get_args(annotation)]
    return [word for part in get_args(annotation) for word in _words(part)]


def _bounds(entry: Any) -> Iterator[str]:
    signs = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    for key, sign in signs.items():
        bound = getattr(entry, key, None)
        if bound is not None and abs(bound) < SLIP:
            yield f"{sign} {bound:g}"

"""Trees of plain values: flattened, laid over each other, written, compared."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from evenhand.errors import UserError
from evenhand.run.tables import (
    _has_effect,
    differences,
    flatten,
    literal,
    merge,
    parse_override,
    put,
    to_toml,
    without_expectations,
)

TREE: dict[str, Any] = {
    "about": 'a "b"\x7fü', "flag": True, "off": False, "list": [1, "x", [2.5]], "run": {"epochs": 5, "empty": {}},
    "only": {"inner": {"x.y": 1, "a-b_c": 2, "ü": 3}},
}  # fmt: skip


def test_toml_is_read_back_as_it_was() -> None:
    text = to_toml(TREE)
    assert tomllib.loads(text) == TREE
    assert text.splitlines()[:4] == [
        'about = "a \\"b\\"\\u007fü"', "flag = true", "off = false", 'list = [1, "x", [2.5]]',
    ]  # fmt: skip
    assert text.splitlines()[4:] == [
        "", "[run]", "epochs = 5", "", "[run.empty]", "", "[only.inner]", '"x.y" = 1', "a-b_c = 2", '"ü" = 3',
    ]  # fmt: skip


def test_an_empty_table_is_a_value() -> None:
    assert flatten({"a": {"b": 1, "c": {}}, "d": 2}) == {"a.b": 1, "a.c": {}, "d": 2}
    assert merge({"a": {"b": 1}, "d": 2}, {"a": {"c": 3}}) == {"a": {"b": 1, "c": 3}, "d": 2}
    assert merge({"a": {"b": 1}}, {"a": {}}) == {"a": {}}
    assert merge({"a": 1}, {"a": {"b": 2}}) == {"a": {"b": 2}}
    assert merge({"a": {"b": 2}}, {"a": 1}) == {"a": 1}


def test_keys_that_differ_are_those_of_either_tree() -> None:
    assert differences({"a": 1, "b": {"c": 2, "d": 3}}, {"a": 1, "b": {"c": 4}, "e": 5}) == ["b.c", "b.d", "e"]


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [("run.epochs=5", "run.epochs", 5), (" a = x=y ", "a", "x=y"), ("a=true", "a", True), ("a=[1, 2]", "a", [1, 2])],
)
def test_an_override_is_toml_or_a_word(text: str, key: str, value: Any) -> None:
    assert parse_override(text) == (key, value)


@pytest.mark.parametrize("text", ["run.epochs", "=5", " = 5"])
def test_an_override_has_a_key_and_a_value(text: str) -> None:
    with pytest.raises(UserError, match="is not key=value"):
        parse_override(text)


def test_a_value_is_put_into_tables_that_may_be_left_out() -> None:
    tree: dict[str, Any] = {"a": {"b": 1}, "n": None}
    put(tree, "a.c", 2)
    put(tree, "n.x.y", 3)
    assert tree == {"a": {"b": 1, "c": 2}, "n": {"x": {"y": 3}}}
    with pytest.raises(UserError, match="'b' is a value, not a table"):
        put(tree, "a.b.c", 4)


def test_literals_are_tomls() -> None:
    assert [literal(value) for value in (True, False, 1, 0.5, "a", [])] == ["true", "false", "1", "0.5", '"a"', "[]"]


@pytest.mark.parametrize(
    ("key", "matters"),
    [
        ("about", False), ("smoke.run.epochs", False), ("run.progress", False), ("run.folder", False),
        ("run.epochs", True), ("method.progress", True), ("data.n_max", True),
    ],
)  # fmt: skip
def test_keys_that_cannot_change_a_result_are_known(key: str, matters: bool) -> None:
    assert _has_effect(key) == matters


def test_expected_numbers_stay_with_what_they_were_made_for() -> None:
    base = {"expect": {"x": 1}, "run": {}, "variants": {"a": {"expect": 1, "m": 2}, "b": {"expect": 3}, "odd": 5}}
    assert without_expectations(base, {}, another=False) == base
    assert without_expectations(base, {}, another=True) == {
        "run": {}, "variants": {"a": {"m": 2}, "b": {}, "odd": 5},
    }  # fmt: skip
    changed = {
        "variants": {"a": {"data": {"n_max": 3}}, "b": {"run": {"progress": True}}, "odd": {"data": {"n_max": 3}}}
    }
    assert without_expectations(base, changed, another=False) == {
        **base, "variants": {"a": {"m": 2}, "b": {"expect": 3}, "odd": 5},
    }  # fmt: skip

"""Recipes: one typed tree written as TOML. ``defaults < base < recipe < variant < --set``, and nothing else."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from evenhand.data.settings import DataSettings
from evenhand.errors import UserError, did_you_mean
from evenhand.methods import METHODS, method_class
from evenhand.run.following import follow
from evenhand.run.settings import Cycles, Run
from evenhand.run.tables import differences, flatten, merge, named, parse_override, put, to_toml, without_expectations
from evenhand.run.tables import explained as explained
from evenhand.settings import WITHOUT_EFFECT, Settings


class Expected(Settings):
    """A number to compare with, and who says so. It belongs to the settings it was made for."""

    value: float
    tolerance: float = Field(..., ge=0, description="half-width that still counts as agreement")
    source: Literal["authors", "measured"]
    seeds: list[int] = Field([], description="of the runs that it is the mean of")
    splits: bool = Field(False, description="each of them had a split of its own, as with reproduce --splits")
    paired: bool = Field(False, description="its tolerance is of differences within splits: it holds for these seeds")
    date: str = Field("", description="on which it was measured")


class Need(Settings):
    """Another run that this one starts from; a string stands for its ``recipe``."""

    recipe: str = Field(..., description="recipe name or run folder")
    set: dict[str, Any] = Field({}, description="what it changes of that recipe, such as data.augment or run.seed")

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return {"recipe": value} if isinstance(value, str) else value

    @field_validator("set")
    @classmethod
    def _flat(cls, value: dict[str, Any]) -> dict[str, Any]:
        return flatten(value)


class Recipe(Settings):
    """Everything a run depends on."""

    about: str = Field("", description="what this recipe does, in a line")
    data: DataSettings = DataSettings()
    method: Any = Field(..., description="the table of the method that its name names")
    run: Run = Run()
    cycles: Cycles | None = Field(None, description="rounds of labels bought, for evenhand cycles")
    needs: dict[str, Need] = Field({}, description="other runs this one starts from: recipe name or run folder")
    expect: dict[str, Expected] = Field({}, description="test metrics that reproduce compares with")
    smoke: dict[str, Any] = Field({}, description="overrides for a run of seconds, offline")
    variants: dict[str, dict[str, Any]] = Field({}, description="named overrides, chosen as recipe:variant")

    def essence(self) -> dict[str, Any]:
        """All that can change a result, defaults filled in."""
        return essence(self.model_dump(exclude_none=True))

    def digest(self) -> str:
        """Names what is trained."""
        return digest(self.model_dump(exclude_none=True))

    def changed(self, overrides: Mapping[str, Any]) -> Recipe:
        """This recipe with some values set, as ``{"run.seed": 1}``."""
        return validate(_laid_over(self.model_dump(), overrides), "recipe") if overrides else self

    def toml(self) -> str:
        """The whole tree, defaults filled in."""
        moment = {"resume", "stop_after"}
        return to_toml(self.model_dump(exclude_none=True, exclude={"smoke": True, "variants": True, "run": moment}))


def essence(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's tree without what cannot change a result."""
    kept = {key: value for key, value in tree.items() if key not in WITHOUT_EFFECT["recipe"]}
    kept["run"] = {key: value for key, value in kept.get("run", {}).items() if key not in WITHOUT_EFFECT["run"]}
    return kept


def digest(tree: Mapping[str, Any]) -> str:
    """Of a tree as it is written, whatever defaults a later version has."""
    return hashlib.sha256(json.dumps(essence(tree), sort_keys=True).encode()).hexdigest()[:16]


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(p.name.removesuffix(".toml") for p in files("evenhand.recipes").iterdir() if p.name.endswith(".toml"))


def recipe_text(name: str) -> str:
    """The TOML of one of our recipes, or of a file."""
    if name in recipe_names():
        return (files("evenhand.recipes") / f"{name}.toml").read_text(encoding="utf-8")
    path = Path(name)
    if path.is_file():
        return path.read_text()
    if path.is_dir() and (path / "recipe.toml").is_file():
        return (path / "recipe.toml").read_text()
    hint = did_you_mean(path.stem, recipe_names())
    ours = hint if hint.startswith("did") else "evenhand list recipes names ours"  # all of them fill a screen
    raise UserError(f"no recipe '{name}', and no such file: {ours}")


def variant_text(name: str, variant: str) -> str:
    """A small recipe of its own: the variant's changes on top of the recipe it belongs to."""
    load_recipe(f"{name}:{variant}")
    return f'base = "{name}"\n' + to_toml(_read(name)["variants"][variant])


def load_recipe(path_or_name: str | Path, overrides: Iterable[str] | Mapping[str, Any] = ()) -> Recipe:
    """Read ``name``, ``name:variant`` or a file, then apply overrides such as ``"run.epochs=5"``."""
    if isinstance(overrides, str):
        raise ValueError(f"overrides={overrides!r} is one text: give a list of them, [{overrides!r}]")
    name = str(path_or_name)
    variant = ""
    if ":" in name and not Path(name).exists():
        name, _, variant = name.rpartition(":")
    tree = _read(name)
    given = overrides.items() if isinstance(overrides, Mapping) else map(parse_override, overrides)
    changes = {inner: value for key, table in given for inner, value in named(key, table)}
    _check_tables(changes, "--set")
    if variant:
        known = tree.get("variants", {})
        if variant not in known:
            hint = did_you_mean(variant, known) if known else "it has none"
            raise UserError(f"recipe '{name}' has no variant '{variant}'; {hint}")
        if not isinstance(known[variant], Mapping):
            raise UserError(f"{name}: variants.{variant} = {known[variant]!r} is a value; write a table of overrides")
        tree = _laid_over(tree, flatten(known[variant]))
    run = tree.get("run", {})
    if "run.folder" not in changes and name not in recipe_names() and Path(name).is_dir():
        # A run that was moved or copied goes on where it is, not where it was; '.' and '..' are no names.
        changes["run.folder"] = os.path.abspath(name) if Path(name).name in ("", "..") else str(Path(name))
    elif isinstance(run, dict) and "run.folder" not in changes and "folder" not in run:
        stem = Path(name).stem if Path(name).suffix else Path(name).name
        seed = changes.get("run.seed", run.get("seed", 0))
        changes["run.folder"] = f"runs/{stem}{'-' + variant if variant else ''}-{seed}"
    recipe = validate(_laid_over(tree, changes), name)
    empty = [key for key, value in changes.items() if value is None]
    lost = differences(recipe.model_dump(), validate(tomllib.loads(recipe.toml()), name).model_dump()) if empty else []
    for key in empty:
        if any(f"{other}.".startswith(f"{key}.") for other in lost):
            raise UserError(f"{key} = None cannot be written into a recipe, where leaving it out means its default")
    return recipe


def _laid_over(tree: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with some values set, as ``{"run.seed": 1}``; what was expected of another result does not stay."""
    new = copy.deepcopy(tree)
    for key, value in changes.items():
        put(new, key, value)
    follow(tree.get("method"), new.get("method"), changes)
    expected = new.get("expect")
    if "expect" in changes or not isinstance(expected, dict) or not tree.get("expect") or _same_results(tree, new):
        return new
    own = {key.split(".")[1] for key in changes if key.startswith("expect.")}
    return {**new, "expect": {metric: value for metric, value in expected.items() if metric in own}}


def _same_results(under: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether two trees are repetitions of one experiment; the split is compared by who compares numbers."""
    try:
        after = _experiment(new)
    except UserError:
        return True  # nothing is taken away from what is wrong, so that it is told of as it was written
    try:
        return _experiment(under) == after
    except UserError:
        return False


def _experiment(tree: dict[str, Any]) -> dict[str, Any]:
    """All that can change a result but the seeds, over which results are averaged."""
    kept = validate(tree, "recipe").essence()
    kept["run"].pop("seed")
    kept["data"].pop("split_seed")
    return kept


def _read(name: str, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """A recipe's tree, laid over the one it names as ``base``."""
    try:
        tree = tomllib.loads(recipe_text(name))
    except ValueError as error:  # of TOML, of UTF-8, or an integer of more digits than Python reads
        if isinstance(error, UserError):
            raise
        if isinstance(error, UnicodeDecodeError):
            raise UserError(
                f"{name} is no recipe, which is text: give a .toml file, or data as a folder or table"
            ) from error
        raise UserError(f"{name} is not valid TOML: {error}") from error
    _check_tables(tree, name)
    if "base" not in tree:
        return tree
    base = str(tree.pop("base"))
    if base in (*above, name):
        raise UserError(f"{name}: base = '{base}' leads back to itself; name another recipe")
    under = _read(base, (*above, name))
    another = not _same_results(under, merge(under, tree))
    return merge(without_expectations(under, tree, another=another), tree)


def _check_tables(tree: Mapping[str, Any], where: str) -> None:
    for key in ("data", "method", "run", "variants"):
        if not isinstance(tree.get(key, {}), dict):
            raise UserError(f"{where}: {key} = {tree[key]!r} is a value; write a table [{key}], or set its keys")


def smoke_recipe(name: str) -> Recipe:
    """The recipe cut down to seconds by its own [smoke] table."""
    return load_recipe(name, flatten(load_recipe(name).smoke))


def validate(tree: dict[str, Any], name: str) -> Recipe:
    """Check types and names; the first mistake becomes one line. Only the method that is named is imported."""
    method = tree.get("method", {})
    if "name" not in method:
        raise UserError(f"{name}: method.name is missing; known: {', '.join(METHODS)}")
    try:
        table = method_class(str(method["name"])).table
    except UserError as error:
        raise UserError(f"{name}: {error}") from error
    try:
        return Recipe.model_validate({**tree, "method": table.model_validate(method)})
    except ValidationError as error:
        where = ("method",) if error.title == table.__name__ else ()
        raise UserError(f"{name}: {_one_line(error, where, table)}") from error


def _one_line(error: ValidationError, where: tuple[str, ...], method: type[BaseModel]) -> str:
    first = error.errors()[0]
    path = _written([*where, *(str(part) for part in first["loc"])])
    if first["type"] == "extra_forbidden":
        known = _table(Recipe, path[:-1], method)
        inside = f"[{'.'.join(path[:-1])}]" if path[:-1] else "the recipe"
        return f"unknown key '{path[-1]}' in {inside}; {did_you_mean(path[-1], known)}"
    message = first["msg"].removeprefix("Value error, ")
    given = first.get("input")
    shown = f" (got {_short(given)})" if isinstance(given, (str, int, float, bool, list)) else ""
    return f"{'.'.join(path)}: {message}{shown}"


def _short(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 200 else f"{text[:30]}... of {len(text)} characters"


def _written(path: list[str]) -> list[str]:
    """The path without the branches of a union that pydantic adds."""
    return [part for part in path if part.replace("_", "").replace("-", "").isalnum() and part not in ("str", "float")]


def _table(model: type[BaseModel], path: list[str], method: type[BaseModel]) -> list[str]:
    """The keys allowed at a path."""
    for part in path:
        if part == "method":
            model = method
            continue
        if part not in model.model_fields:
            continue  # a name that the user chose, as in expect.<metric>
        annotation = model.model_fields[part].annotation
        inner = [a for a in (annotation, *get_args(annotation)) if isinstance(a, type) and issubclass(a, BaseModel)]
        if not inner:
            return []
        model = inner[0]
    return list(model.model_fields)

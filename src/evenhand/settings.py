"""What every table of a recipe has in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

# Keys of a recipe and of its [run] table that cannot change a result.
WITHOUT_EFFECT = {
    "recipe": ("about", "expect", "smoke", "variants"),
    "run": ("folder", "device", "threads", "workers", "tensorboard", "progress", "resume", "stop_after"),
}


class Settings(BaseModel):
    """A table of a recipe: typed, read-only, and an unknown key is an error.

    A table inside keeps what its owner sets for it: where ``net: Net = Net(name="wrn28-2")``, a recipe that says
    ``net.width = 32`` alone still gets that network.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
    takes_after: ClassVar[Mapping[str, str]] = {}  # a table inside, and the one it is like in what it leaves out

    @model_validator(mode="before")
    @classmethod
    def _owners_defaults(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        for key, value in given.items():
            if isinstance(value, int) and abs(value) >= 2**63:
                raise ValueError(f"{key} is an integer beyond 64 bits; write a smaller one")
        defaults = {key: field.default for key, field in cls.model_fields.items()}
        return {key: _laid_over(defaults.get(key), value) for key, value in given.items()}

    @classmethod
    def following(cls, given: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG003
        """Defaults that follow from other values of this table, such as a learning rate from an adversary."""
        return {}


def _laid_over(default: Any, given: Any) -> Any:
    """``given`` and what ``default`` sets explicitly, where both are tables; else ``given``."""
    if not isinstance(default, Settings) or not isinstance(given, dict):
        return given
    own = {key: getattr(default, key) for key in default.model_fields_set}
    return {**own, **{key: _laid_over(getattr(default, key, None), value) for key, value in given.items()}}

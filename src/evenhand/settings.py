"""What every table of a recipe has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

# Keys of a recipe and of its [run] table that cannot change a result.
WITHOUT_EFFECT = {
    "recipe": ("about", "expect", "smoke", "variants"),
    "run": ("folder", "device", "threads", "workers", "tensorboard", "progress", "resume", "stop_after"),
}


class Settings(BaseModel):
    """A table of a recipe: typed, read-only, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

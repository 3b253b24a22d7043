"""The [run] table of a recipe: how long, where, how exact."""

from __future__ import annotations

from pydantic import Field, field_validator

from evenhand.settings import Settings


class Run(Settings):
    """How to train: length, folder, device, evaluation, selection."""

    folder: str = Field("runs/unnamed", description="where the run is written")
    seed: int = Field(0, ge=0, description="seeds everything except the data split")
    epochs: float = Field(10, ge=0, description="passes over the method's first stream")
    steps: int | None = Field(None, gt=0, description="training steps; overrides epochs")
    eval_every: float = Field(1, gt=0, description="epochs between evaluations and checkpoints")
    keep_every: float | None = Field(None, gt=0, description="epochs between checkpoints that are kept")
    log_every: int = Field(20, gt=0, description="steps between rows of the log")
    select: str = Field("last", description="checkpoint to measure: last, val:<metric>, oracle:<metric> (test!)")
    eval_batch: int = Field(512, gt=0, description="samples per evaluation batch")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")
    threads: int | None = Field(None, gt=0, description="torch threads on the CPU; default: torch's own choice")
    workers: int = Field(2, ge=0, description="decoding processes for images that do not fit in memory")
    tensorboard: bool = Field(False, description="also write TensorBoard files (needs the extra)")
    progress: bool = Field(True, description="draw a progress bar")
    resume: bool = Field(False, description="continue from last.pt if it is there")
    stop_after: int | None = Field(None, gt=0, description="pause after that many steps, resumably")

    @field_validator("select")
    @classmethod
    def _known_rule(cls, value: str) -> str:
        rule, _, metric = value.partition(":")
        if value == "last" or (rule in ("val", "oracle") and metric):
            return value
        raise ValueError(f"'{value}' is not a rule; use last, val:<metric> or oracle:<metric>, e.g. val:mean_recall")

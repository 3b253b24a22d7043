"""The [run] table of a recipe: how long, where, how exact."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from evenhand.run.selection import parse_rule
from evenhand.settings import Settings

MOST = 10**12  # steps, epochs or samples: beyond it is a slip of the pen


class Run(Settings):
    """How to train: length, folder, device, evaluation, selection."""

    folder: str = Field("runs/unnamed", description="where the run is written")
    seed: int = Field(0, ge=0, lt=2**63, description="seeds everything except the data split")
    epochs: float = Field(10, ge=0, le=MOST, description="passes over the method's first stream")
    steps: int | None = Field(None, gt=0, le=MOST, description="training steps; overrides epochs")
    eval_every: float = Field(1, gt=0, le=MOST, description="epochs between evaluations and checkpoints")
    keep_every: float | None = Field(None, gt=0, le=MOST, description="epochs between checkpoints that are kept")
    log_every: int = Field(20, gt=0, le=MOST, description="steps between rows of the log")
    select: str = Field(
        "last", description="checkpoint to measure: last, val:<metric>, label-free:<score>, oracle:<metric> (test!)"
    )
    select_also: list[str] = Field([], description="further rules whose choices are measured beside it, never used")
    eval_batch: int = Field(512, gt=0, le=MOST, description="samples per evaluation batch")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")
    threads: int | None = Field(
        None, gt=0, le=4096, description="torch threads on the CPU; default: torch's own choice"
    )
    workers: int = Field(2, ge=0, le=256, description="decoding processes for images that do not fit in memory")
    batchnorm: Literal["joint", "local"] = Field("joint", description="statistics over all processes, or each its own")
    tensorboard: bool = Field(False, description="also write TensorBoard files (needs the extra)")
    progress: bool = Field(True, description="draw a progress bar")
    resume: bool = Field(False, description="continue from last.pt if it is there")
    stop_after: int | None = Field(None, gt=0, le=MOST, description="pause after that many steps, resumably")

    @field_validator("folder")
    @classmethod
    def _has_a_name(cls, value: str) -> str:
        if Path(value).name in ("", ".."):  # the lock and the needed runs stand beside it
            raise ValueError("a run needs a folder of its own; write one such as runs/mine")
        return value

    @field_validator("select")
    @classmethod
    def _known_rule(cls, value: str) -> str:
        parse_rule(value)
        return value

    @model_validator(mode="after")
    def _further_rules(self) -> Run:
        for text in self.select_also:
            if parse_rule(text) is None or [self.select, *self.select_also].count(text) > 1:
                raise ValueError(f"select_also names '{text}', which is kept anyway; leave it out")
        return self


class Cycles(Settings):
    """An experiment that buys labels of the target in rounds: see evenhand cycles."""

    by: str = Field(
        "s3vaada", description="selector: s3vaada, random, entropy, margin, badge, clue, aada, coreset, ..."
    )
    count: int = Field(5, ge=1, le=1000, description="rounds of labels; one training before them and one after each")
    budget: float = Field(0.02, gt=0, le=MOST, description="labels a round: a share of the first pool, or their number")
    alpha: float = Field(0.5, ge=0, le=1, description="s3vaada: weight of uncertainty")
    beta: float = Field(0.3, ge=0, le=1, description="s3vaada: weight of diversity; the rest is representativeness")
    starts: int = Field(5, gt=0, description="s3vaada, vap: random starts of a sample's perturbations")
    epsilon: float = Field(5.0, gt=0, description="s3vaada, vap: norm of the perturbations")
    temperature: float = Field(1.0, gt=0, description="clue: of the entropies that weigh samples")

    @model_validator(mode="after")
    def _weights(self) -> Cycles:
        if self.alpha + self.beta > 1 + 1e-9:
            raise ValueError(f"alpha = {self.alpha} and beta = {self.beta} add up to more than 1; lower one")
        return self

    def labels(self, pool: int) -> int:
        """Labels of one round, at least 1."""
        return max(1, int(self.budget * pool + 1e-9) if self.budget < 1 else int(self.budget))

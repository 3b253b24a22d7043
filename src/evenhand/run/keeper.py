"""Judging a method while it trains: which checkpoint is the best, and what is written when."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from evenhand import parallel
from evenhand.data.stream import Streams
from evenhand.errors import UserError
from evenhand.methods.protocol import Listens, Method, Recogniser
from evenhand.run import checkpoint
from evenhand.run.settings import Run

LOWER_IS_BETTER = {"loss", "ece", "fid", "kid", "label_kl"}


class Keeper:
    """Evaluates, remembers the best, and writes checkpoints."""

    def __init__(
        self, method: Method, streams: Streams, run: Run, folder: Path, digest: str, total: int, epoch_steps: int
    ) -> None:
        self.method, self.streams, self.run, self.folder = method, streams, run, folder
        self.digest, self.total, self.epoch_steps = digest, total, epoch_steps
        self.rule, _, self.metric = run.select.partition(":")
        self.best = -math.inf
        self.judged = check_selection(method, streams, run)
        if parallel.is_writer():
            checkpoint.sweep(folder)

    def begin(self) -> int:
        if (self.folder / "last.pt").exists():
            raise UserError(f"{self.folder} already holds a run: add --resume, or choose another run.folder")
        parallel.barrier()
        return 0

    def resume(self) -> int:
        path = self.folder / "last.pt"
        if not path.exists():
            return 0
        content = checkpoint.load(path)
        if content["digest"] != self.digest:
            raise UserError(
                f"{path} belongs to another recipe (digest {content['digest'] or 'none'}, this one is {self.digest}); "
                "choose another run.folder, or train with the recipe.toml in it"
            )
        self.method.load_state(content["method"])
        self.best = content["best"]
        return int(content["step"])

    def judge(self, step: int) -> dict[str, dict[str, float]]:
        """Measure the streams that selection or feedback may see; the test split only under 'oracle'."""
        measured: dict[str, dict[str, float]] = {}
        self._finite_state(step)
        for split in ["val"] * ("val" in self.streams) + ["test"] * (self.rule == "oracle"):
            measured[split] = self.method.judge(self.streams[split], batch=self.run.eval_batch)
        if isinstance(self.method, Listens) and "val" in measured:
            self.method.feedback(measured["val"], self.streams)
        if self.judged is not None:
            values = measured[self.judged]
            if self.metric not in values:
                raise UserError(f"run.select names '{self.metric}'; measured are: {', '.join(sorted(values))}")
            score = -values[self.metric] if self.metric in LOWER_IS_BETTER else values[self.metric]
            if score > self.best:
                self.best = score
                self._write("best.pt", step)
        return measured

    def save(self, step: int) -> None:
        self._write("last.pt", step)

    def keep(self, step: int) -> None:
        """A checkpoint that stays, for studies over training."""
        whole = float(self.run.keep_every or 1).is_integer()
        epoch = step / self.epoch_steps
        self._write(f"epoch-{round(epoch):04d}.pt" if whole else f"epoch-{epoch:08.3f}.pt", step)

    def _finite_state(self, step: int) -> dict[str, Any]:
        state = self.method.state()
        if not checkpoint.is_finite(state):
            raise UserError(diverged("weights are not finite", step, self.folder))
        return state

    def _write(self, name: str, step: int) -> None:
        if not parallel.is_writer():
            return
        content = {
            "method": self._finite_state(step), "step": step, "total": self.total, "epoch": step / self.epoch_steps,
            "best": self.best, "digest": self.digest,
        }  # fmt: skip
        checkpoint.save(self.folder / name, content)


def check_selection(method: Method, streams: Streams, run: Run) -> str | None:
    """The stream that ``run.select`` judges by; refuses a missing one and an unknown metric, on one sample."""
    rule, _, metric = run.select.partition(":")
    judged = {"val": "val", "oracle": "test"}.get(rule)
    if judged is None:
        return None
    if judged not in streams:
        raise UserError(
            f"run.select = '{run.select}' needs a '{judged}' stream; "
            "carve one with data.val_per_class, or use select = 'last'"
        )
    if not isinstance(method, Recogniser):
        return judged  # judging a generator takes long: a wrong name shows at the first evaluation
    known = method.judge(streams[judged].subset(torch.arange(1)), batch=1)
    if metric not in known:
        raise UserError(f"run.select names '{metric}'; measured are: {', '.join(sorted(known))}")
    return judged


def diverged(what: str, step: int, folder: Path) -> str:
    kept = "the last good checkpoint is kept in last.pt" if (folder / "last.pt").exists() else "nothing was saved yet"
    return f"training diverged by step {step} ({what}); {kept}. Lower the learning rate or set a gradient clip"

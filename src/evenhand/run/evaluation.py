"""Judging a method while it trains: which checkpoint is the best, and what is written when."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from evenhand import parallel
from evenhand.data.stream import Streams
from evenhand.errors import UserError
from evenhand.measure.shift import adaptation_troubles
from evenhand.methods.protocol import Listens, Method
from evenhand.run import checkpoint
from evenhand.run.adaptation import judge_target
from evenhand.run.selection import Best, check_selection, rules_of
from evenhand.run.settings import Run


class Keeper:
    """Evaluates, remembers the best, and writes checkpoints."""

    def __init__(
        self, method: Method, streams: Streams, run: Run, folder: Path, digest: str, total: int, epoch_steps: int
    ) -> None:
        self.method, self.streams, self.run, self.folder = method, streams, run, folder
        self.digest, self.total, self.epoch_steps = digest, total, epoch_steps
        check_selection(method, streams, run.select, run.select_also)
        self.best = Best(rules_of(run.select, run.select_also))
        self.warned: set[str] = set()
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
        self.best.scores |= {self.run.select: content["best"]} | content.get("best_also", {})
        return int(content["step"])

    def judge(self, step: int) -> dict[str, dict[str, float]]:
        """Measure the streams that selection or feedback may see; the test split only if a rule says 'oracle'."""
        measured: dict[str, dict[str, float]] = {}
        self._finite_state(step)
        oracle = any(rule.kind == "oracle" for rule in self.best.rules)
        for split in ["val"] * ("val" in self.streams) + ["test"] * oracle:
            measured[split] = self.method.judge(self.streams[split], batch=self.run.eval_batch)
        if isinstance(self.method, Listens) and "val" in measured:
            self.method.feedback(measured["val"], self.streams)
        if target := judge_target(self.method, self.streams, batch=self.run.eval_batch):
            measured["target"] = target
        for rule in self.best.beaten(measured):
            self._write("best.pt" if rule.text == self.run.select else rule.file, step)
        return measured

    def troubles(self, step: int, measured: dict[str, dict[str, float]]) -> list[str]:
        """What goes wrong with adaptation in the second half of training, each kind once."""
        late = adaptation_troubles(measured.get("target", {})) if 2 * step >= self.total else {}
        new = {kind: said for kind, said in late.items() if kind not in self.warned}
        self.warned |= new.keys()
        return list(new.values())

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
            "best": self.best.scores.get(self.run.select, -math.inf), "digest": self.digest,
            "best_also": {rule: self.best.scores[rule] for rule in self.run.select_also},
        }  # fmt: skip
        checkpoint.save(self.folder / name, content)


def diverged(what: str, step: int, folder: Path) -> str:
    kept = "the last good checkpoint is kept in last.pt" if (folder / "last.pt").exists() else "nothing was saved yet"
    return f"training diverged by step {step} ({what}); {kept}. Lower the learning rate or set a gradient clip"

"""What a training leaves behind: it is evaluated, the best so far is remembered, and checkpoints are written."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from evenhand import atomic, parallel
from evenhand.data.stream import Streams
from evenhand.errors import UserError
from evenhand.methods.protocol import Method
from evenhand.run import checkpoint
from evenhand.run.selection import Best, check_selection, rules_of
from evenhand.run.settings import Run
from evenhand.tasks import Scores


class Checkpoints:
    """Of one run: ``last.pt``, ``best.pt``, those that other rules would choose, and those kept for studies."""

    def __init__(
        self, method: Method, streams: Streams, run: Run, folder: Path, digest: str, total: int, epoch_steps: int
    ) -> None:
        self.method, self.streams, self.run, self.folder = method, streams, run, folder
        self.digest, self.total, self.epoch_steps = digest, total, epoch_steps
        check_selection(method, streams, run.select, run.select_also)
        self.best = Best(rules_of(run.select, run.select_also), method.task)
        self.warned: set[str] = set()
        self.latest: tuple[int, dict[str, Scores]] = (-1, {})  # when the last evaluation was made, and what it found
        if parallel.is_writer():
            atomic.sweep(folder)

    def begin(self) -> int:
        if (self.folder / "last.pt").exists():
            raise UserError(f"{self.folder} already holds a run: add --resume, or choose another run.folder")
        parallel.barrier()
        return 0

    def resume(self) -> int:
        """The step to go on from; the method is as it was then."""
        checkpoint.take_up(self.folder)
        path = self.folder / "last.pt"
        if not path.exists():
            return 0
        content = checkpoint.load(path, going_on=True)
        if content["digest"] != self.digest:
            raise UserError(
                f"{path} belongs to another recipe (digest {content['digest'] or 'none'}, this one is {self.digest}); "
                "choose another run.folder, or train with the recipe.toml in it"
            )
        checkpoint.restore(self.method, content, path)
        self.best.scores |= {self.run.select: content["best"]} | content["best_also"]
        self.latest = int(content["step"]), content["measured"]
        self.warned = set(content.get("warned", ()))
        return int(content["step"])

    def evaluate(self, step: int) -> dict[str, Scores]:
        """Score the streams that selection may see, the test split only if a rule says 'oracle'; keep the best.

        What the method says of itself needs no stream: without validation it stands alone, as ``traces``.
        """
        self._finite_state(step)
        task, batch = self.method.task, self.run.eval_batch
        oracle = any(rule.kind == "oracle" for rule in self.best.rules)
        splits = ["val"] * ("val" in self.streams) + ["test"] * oracle
        measured = {split: task.score(self.method, self.streams[split], batch=batch) for split in splits}
        measured |= task.watch(self.method, self.streams, batch=batch)
        if not {"val", "traces"} & measured.keys() and (traces := self.method.traces()):
            measured["traces"] = traces
        for rule in self.best.beaten(measured):
            self._write("best.pt" if rule.text == self.run.select else rule.file, step)
        self.latest = step, measured
        return measured

    def measured(self, step: int) -> dict[str, Scores]:
        """What an evaluation at this very step has found, if there was one."""
        return self.latest[1] if self.latest[0] == step else {}

    def troubles(self, step: int, measured: dict[str, Scores]) -> list[str]:
        """What goes wrong in the second half of training, each kind once."""
        keys = getattr(getattr(self.method, "table", None), "model_fields", ())  # a method of one's own may have none
        late = self.method.task.troubles(measured, keys) if 2 * step >= self.total else {}
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
            "measured": self.measured(step), "warned": sorted(self.warned),
        }  # fmt: skip
        checkpoint.save(self.folder / name, content)


def diverged(what: str, step: int, folder: Path) -> str:
    kept = "the last good checkpoint is kept in last.pt" if (folder / "last.pt").exists() else "nothing was saved yet"
    return f"training diverged by step {step} ({what}); {kept}. Lower the learning rate or set a gradient clip"

"""Which checkpoint is the best: rules by name, on validation, on the target without its labels, or on the test."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evenhand.data.stream import Stream, Streams
from evenhand.errors import UserError, did_you_mean
from evenhand.measure.shift import SCORES
from evenhand.methods.protocol import Method
from evenhand.tasks import Metric, Scores, Task

SOURCE_RISK = "source-risk"
LABEL_FREE = (*SCORES, SOURCE_RISK)


@dataclass(frozen=True)
class Rule:
    """``val:<metric>``, ``label-free:<score>`` (source-risk: the validation loss) or ``oracle:<metric>`` (test!)."""

    kind: str
    name: str

    @property
    def text(self) -> str:
        return f"{self.kind}:{self.name}"

    @property
    def stream(self) -> str:
        """What is judged for it."""
        if self.kind == "label-free" and self.name != SOURCE_RISK:
            return "target"
        return "test" if self.kind == "oracle" else "val"

    @property
    def metric(self) -> str:
        return "loss" if self.name == SOURCE_RISK else self.name

    @property
    def file(self) -> str:
        """Where a rule of ``run.select_also`` keeps its choice."""
        return f"best-{self.kind}-{self.name}.pt"

    def score(self, measured: dict[str, Scores], task: Task) -> float:
        """Higher is better."""
        values = measured[self.stream]
        if self.metric not in values:
            raise UserError(f"run.select names '{self.metric}'; measured are: {', '.join(sorted(values))}")
        return task.metric(self.metric).better(values[self.metric])


def parse_rule(text: str) -> Rule | None:
    """The rule that a recipe writes; None for "last"."""
    kind, _, name = text.partition(":")
    if text == "last":
        return None
    if kind not in ("val", "oracle", "label-free") or not name:
        remedy = "use last, val:<metric>, label-free:<score> or oracle:<metric>, e.g. val:mean_recall"
        raise ValueError(f"'{text}' is not a rule; {remedy}")
    if kind == "label-free" and name not in LABEL_FREE:
        raise ValueError(f"'{name}' is no label-free score; {did_you_mean(name, LABEL_FREE)}")
    return Rule(kind, name)


def rules_of(select: str, also: Sequence[str]) -> list[Rule]:
    return [rule for text in (select, *also) if (rule := parse_rule(text)) is not None]


def check_selection(method: Method, streams: Streams, select: str, also: Sequence[str] = ()) -> None:
    """Refuse, before training, a rule whose stream is missing or whose metric is unknown, or not to be had there."""
    for rule in rules_of(select, also):
        if rule.stream not in streams:
            remedy = "name one in data.target" if rule.stream == "target" else "carve one with data.val_per_class"
            raise UserError(
                f"run.select = '{rule.text}' needs a '{rule.stream}' stream; {remedy}, or use select = 'last'"
            )
        if rule.kind == "label-free" and rule.name != SOURCE_RISK:
            continue
        try:
            metric = method.task.metric(rule.metric)
        except UserError as error:
            raise UserError(f"run.select = '{rule.text}': {error}") from error
        if metric.late:
            some = ", ".join(metric.key for metric in method.task.metrics if not metric.late)
            raise UserError(
                f"run.select = '{rule.text}': '{rule.metric}' is measured once, at the end of a run; use one of {some}"
            )
        if lacking := method.task.lacks(method, rule.metric):
            raise UserError(f"run.select = '{rule.text}': {lacking}, or select another")
        if metric.groups:
            _check_groups(rule, metric, streams[rule.stream], method.data.groups)


def _check_groups(rule: Rule, metric: Metric, stream: Stream, groups: Mapping[str, Sequence[int]]) -> None:
    for name in metric.groups:
        if name not in groups:
            known = " and ".join(groups)
            raise UserError(f"run.select = '{rule.text}': data.groups makes no {name}, only {known}; select another")
    if not any(stream.counts[k] for name in metric.groups for k in groups[name]):
        named = " or ".join(metric.groups)
        raise UserError(
            f"run.select = '{rule.text}': '{rule.stream}' has no sample of {named}; hold some out, or select another"
        )


class Best:
    """The best score of every rule so far, and which of them a new evaluation beats."""

    def __init__(self, rules: Sequence[Rule], task: Task) -> None:
        self.rules, self.task = list(rules), task
        self.scores = {rule.text: -math.inf for rule in rules}

    def beaten(self, measured: dict[str, Scores]) -> list[Rule]:
        """The rules by which this evaluation is the best yet; it is remembered as such."""
        found = {rule: rule.score(measured, self.task) for rule in self.rules}
        new = [rule for rule, score in found.items() if score > self.scores[rule.text]]
        self.scores |= {rule.text: found[rule] for rule in new}
        return new

"""Tasks: what a run is for. Everything that depends on it stands here; ``run``, ``report`` and ``cli`` only ask.

A task outside the package is named as ``module:object``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from evenhand.errors import UserError, did_you_mean
from evenhand.tasks.metric import Metric

if TYPE_CHECKING:
    from pathlib import Path

    from evenhand.data.prepared import Data
    from evenhand.data.stream import Stream, Streams
    from evenhand.report.sections import Sections

__all__ = ["TASKS", "Metric", "Task", "task_named"]

TASKS = {
    "classify": "evenhand.tasks.classify:CLASSIFY",
    "generate": "evenhand.tasks.generate:GENERATE",
    "detect": "evenhand.tasks.detect:DETECT",
}
Scores = dict[str, float]


class Task(ABC):
    """Which numbers exist and which way is better, how a stream is scored, what a report shows.

    ``headline`` is the number that decides, ``tail`` what it does to rare classes. ``per_class`` metrics are lists in
    measure.json with one entry for each class. ``judged_by`` are the keys of measure.json on which scores depend
    besides the method: runs that differ in them do not compare. ``whole`` images lose no margin to cropping.
    ``boxes``: the truth about an image is where its objects are. ``aims`` tells which metrics a
    ``method.objective`` is after, where they are not called the same.
    """

    name: str
    noun: str
    metrics: tuple[Metric, ...]
    headline: Metric
    tail: Metric
    per_class: tuple[Metric, ...]
    judged_by: tuple[str, ...] = ()
    whole: bool = False
    boxes: bool = False
    aims: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def metric(self, key: str) -> Metric:
        """The metric called ``key``."""
        known = {metric.key: metric for metric in self.metrics}
        if key not in known:
            raise UserError(f"'{key}' is no number of task {self.name}; {did_you_mean(key, known)}")
        return known[key]

    def lacks(self, method: Any, key: str) -> str:
        """What keeps a method from being scored by this metric at evaluation, with a remedy; empty: nothing does."""
        return ""

    @abstractmethod
    def score(self, method: Any, stream: Stream, *, batch: int = 512) -> Scores:
        """One number per name on a held-out stream: what selection may use and the log keeps."""

    @abstractmethod
    def table(self, method: Any, stream: Stream, *, batch: int = 512) -> dict[str, Any]:
        """Everything the report shows of a held-out stream, as plain values.

        Arrays go to files of their own, as do bytes, whose key is the file's name.
        """

    def watch(self, method: Any, streams: Streams, *, batch: int = 512) -> dict[str, Scores]:
        """Numbers of streams whose labels nobody may see, at each evaluation."""
        return {}

    def troubles(self, watched: dict[str, Scores], keys: Collection[str] = ()) -> dict[str, str]:
        """What looks wrong in them, kind by kind, with a remedy among the ``keys`` of the method's table."""
        return {}

    def temperature(self, method: Any, streams: Streams, *, batch: int = 512) -> float | None:
        """What logits are divided by so that confidences are right; None where there are none, or no validation."""
        return None

    def finish(self, method: Any, data: Data, folder: Path, *, batch: int = 512) -> dict[str, Any]:
        """What is measured once at the end besides the table, such as pictures put into the run's folder."""
        return {}

    @abstractmethod
    def sections(self) -> Sections:
        """What a report shows of this task's runs."""


def task_named(name: str) -> Task:
    """The task of that name, or behind ``module:object``."""
    place = TASKS.get(name, name)
    if ":" not in place:
        raise UserError(f"no task is called '{name}'; {did_you_mean(name, TASKS)}")
    module, _, found = place.partition(":")
    try:
        task = getattr(import_module(module), found)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"task '{name}' cannot be imported ({error}); put its module on the Python path") from error
    if not isinstance(task, Task):
        raise UserError(f"'{name}' is no task but a {type(task).__name__}; name an instance of evenhand.tasks.Task")
    return task

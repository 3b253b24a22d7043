"""What a task adds to a report; titles, summary, verdict and tables come of its metrics alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from evenhand.report.records import RunGroup
from evenhand.report.table import Table

Section = Callable[[Sequence[RunGroup], Mapping[str, str]], str]  # groups and their colours -> HTML, "" for none
Remarks = Callable[[Sequence[RunGroup]], list[str]]


def _nothing(_group: RunGroup) -> str:
    return ""


def _same(measure: dict[str, Any]) -> dict[str, Any]:
    return measure


def _none(_groups: Sequence[RunGroup]) -> list[str]:
    return []


@dataclass(frozen=True)
class Sections:
    """All groups that a function is given are of the task; those of ``notes`` and ``cautions`` are measured, too.

    ``illustrated`` are the sections between summary and provenance, by title. HTML is made with ``markup.parts``; any
    other string is escaped. ``notes`` say what the scores depend on (below the summary and in the terminal),
    ``cautions`` what a reader must know before believing them. Of the best group, ``context`` stands beside its number
    in the verdict, and ``advice`` is one line on what to try next. ``mended`` puts right what older versions measured
    under another name. ``each_class`` is the terminal's table of classes, if it is not the plain one. ``parts`` has
    the types of what these read of measure.json beyond the task's metrics; a file that breaks them is refused. The
    per-class table is captioned ``classes``, then ``remarks``, then what a star on a flagged number means, ``doubt``.
    """

    illustrated: Mapping[str, Section] = field(default_factory=dict)
    context: Callable[[RunGroup], str] = _nothing
    advice: Callable[[RunGroup], str] = _nothing
    mended: Callable[[dict[str, Any]], dict[str, Any]] = _same
    each_class: Callable[[Sequence[RunGroup]], Table] | None = None
    notes: Remarks = _none
    cautions: Remarks = _none
    parts: type[BaseModel] = BaseModel
    classes: str = "Each class"
    remarks: tuple[str, ...] = ()
    doubt: str = "* not to be trusted"

"""The report's first sentence, and what a reader must know before believing it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from markupsafe import Markup

from evenhand.report.markup import parts
from evenhand.report.records import RunGroup, by_task
from evenhand.report.tables import number_cell, said
from evenhand.report.tested import compare, tested_on
from evenhand.tasks import Task
from evenhand.tasks.metric import Metric


def verdict(groups: Sequence[RunGroup]) -> Markup:
    """Who is best on each task's headline, and what that does to the tail, in one or two plain sentences."""
    return Markup(" ").join(_of_task(task, same) for task, same in by_task(groups).items())


def advice(groups: Sequence[RunGroup]) -> list[str]:
    """What to try next with the best group of each task, where its numbers say so."""
    best = ((task, _ranked(task, same)[0][:1]) for task, same in by_task(groups).items())
    told = (f"{task.sections().advice(group)}" for task, first in best for group in first)
    return [line for line in told if line]


def _ranked(task: Task, groups: Sequence[RunGroup]) -> tuple[list[RunGroup], bool]:
    """Groups that compare, best first, and whether that is all there are."""
    metric = task.headline
    able = [g for g in groups if said(g, metric)]
    fair = [g for g in able if not g.oracle] or able
    same = [g for g in fair if compare(fair[0], g)]
    return sorted(same, key=lambda g: -metric.better(fmean(v for _, v in g.values(metric)))), len(same) == len(fair)


def _of_task(task: Task, groups: Sequence[RunGroup]) -> Markup:
    ranked, every = _ranked(task, groups)
    best, rival = [*ranked, None, None][:2]
    tied = [g for g in ranked if _shown(g, task.headline) == _shown(ranked[0], task.headline)]
    among = "" if every else f" among the {len(ranked)} comparable"
    remark = _weight(best, rival, task.headline) if best and rival and len(tied) < 2 else ""
    context = task.sections().context(best) if best else ""
    return parts.verdict(task, best, rival, tied, among, remark, said, context)


def _shown(group: RunGroup, metric: Metric) -> str:
    """The mean as it is written: what reads the same is no lead."""
    return number_cell(group.values(metric), metric.digits).text


def _weight(best: RunGroup, rival: RunGroup, metric: Metric) -> str:
    """Whether the lead over the runner-up is more than the seeds' own spread."""
    ours, theirs = ([v for _, v in g.values(metric)] for g in (best, rival))
    if min(len(ours), len(theirs)) < 2:
        return "With one seed on a side, chance cannot be told from merit."
    lead, spread = abs(fmean(ours) - fmean(theirs)), max(stdev(ours), stdev(theirs))
    if lead > spread:
        return ""
    return f"The lead over {rival.name} ({lead:.{metric.digits}f}) lies within the spread of the seeds."


def task_cautions(groups: Sequence[RunGroup]) -> list[str]:
    """What the tasks say is wrong with the runs or with what judged them."""
    tasks = by_task(group for group in groups if group.measured)
    return [said for task, same in tasks.items() for said in task.sections().cautions(same)]


def cautions(groups: Sequence[RunGroup]) -> Markup:
    """What a reader must know before comparing the numbers."""
    measured = [g for g in groups if g.measured]
    found = []
    if any(g.measure.get("split") != "test" for g in measured):
        splits = ", ".join(f"{g.name}: {g.measure.get('split', 'unknown')}" for g in measured)
        found.append(f"Not everything was measured on the test split ({splits}).")
    for same in by_task(measured).values():
        apart = [key for key, first in same[0].judged.items() if any(g.judged[key] != first for g in same)]
        if apart:
            keys = ", ".join(apart).replace("_", " ")
            found.append(f"The runs differ in {keys}: their numbers cannot be compared.")
        found += filter(None, [tested_on(same)[0]])
    found += task_cautions(groups)
    oracles = [g.name for g in groups if g.oracle]
    return parts.cautions(oracles, found) if oracles or found else Markup()

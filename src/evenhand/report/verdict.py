"""The report's first sentence, and what a reader must know before believing it."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Sequence
from statistics import fmean, stdev

from evenhand.report.adaptation import said as adaptation_said
from evenhand.report.generators import judged_apart, troubles
from evenhand.report.metrics import FID, MEAN_RECALL, TAIL_FID, TAIL_RECALL, Metric
from evenhand.report.records import RunGroup

BADGE = '<b class="badge">selected on the test split (oracle)</b>'


def _said(group: RunGroup, metric: Metric) -> str:
    values = [v for _, v in group.values(metric)]
    spread = f" ± {stdev(values):.{metric.digits}f}" if len(values) > 1 else ""
    unit = f" {metric.unit}" if metric.unit else ""
    return f'<span class="keep">{fmean(values):.{metric.digits}f}{spread}{unit}</span>'


def _defined(group: RunGroup, metric: Metric) -> bool:
    values = [v for _, v in group.values(metric)]
    return bool(values) and all(map(math.isfinite, values))


def verdict(groups: Sequence[RunGroup]) -> str:
    """Who is best on mean recall or FID, and what that does to the tail, in one or two plain sentences."""
    return html.unescape(re.sub(r"<[^>]*>", "", verdict_html(groups)))


def verdict_html(groups: Sequence[RunGroup]) -> str:
    told = []
    for metric, tail, able in ((MEAN_RECALL, TAIL_RECALL, False), (FID, TAIL_FID, True)):
        if kind := [g for g in groups if g.draws == able]:
            told.append(_one_kind(kind, metric, tail))
    return " ".join(told)


def _one_kind(groups: Sequence[RunGroup], metric: Metric, tail: Metric) -> str:
    able = [g for g in groups if _defined(g, metric)]
    if not able:
        return f"Nothing to compare yet: {metric.name} was not run."
    fair = [g for g in able if not g.oracle] or able
    same = [g for g in fair if g.task == fair[0].task]
    where = "" if len(same) == len(fair) else f" among the {len(same)} comparable"
    sign = -1 if metric.higher_is_better else 1
    ranked = sorted(same, key=lambda g: sign * fmean(v for _, v in g.values(metric)))
    best, rival = ranked[0], ranked[1] if len(ranked) > 1 else None
    name, how = f"<strong>{html.escape(best.name)}</strong>", f"{_said(best, metric)}, {best.size}"
    title = metric.name[0].upper() + metric.name[1:]
    text = f"Best {metric.name}{where}: {name} ({how})" if rival else f"{title} of {name}: {how}"
    if _defined(best, tail):
        text += f"; {tail.name} {_said(best, tail)}"
        if rival and _defined(rival, tail):
            text += f" against {_said(rival, tail)} for {html.escape(rival.name)}"
    remark = _weight(best, rival, metric)
    return f'{text}. <span class="remark">{remark}</span>' if remark else f"{text}."


def _weight(best: RunGroup, rival: RunGroup | None, metric: Metric) -> str:
    """Whether the lead over the runner-up is more than the seeds' own spread."""
    if rival is None:
        return ""
    ours, theirs = ([v for _, v in g.values(metric)] for g in (best, rival))
    if min(len(ours), len(theirs)) < 2:
        return "With one seed on a side, chance cannot be told from merit."
    lead, spread = abs(fmean(ours) - fmean(theirs)), max(stdev(ours), stdev(theirs))
    if lead > spread:
        return ""
    return f"The lead over {html.escape(rival.name)} ({lead:.{metric.digits}f}) lies within the spread of the seeds."


def cautions(groups: Sequence[RunGroup]) -> str:
    """What a reader must know before comparing the numbers."""
    measured = [g for g in groups if g.measured]
    remark = "its numbers are optimistic and take no part in the comparison"
    found = [f"{BADGE} {html.escape(g.name)}: {remark}." for g in groups if g.oracle]
    if any(g.measure.get("split") != "test" for g in measured):
        splits = ", ".join(f"{g.name}: {g.measure.get('split', 'unknown')}" for g in measured)
        found.append(f"Not everything was measured on the test split ({html.escape(splits)}).")
    if len({g.task for g in measured if not g.draws}) > 1:
        found.append("The runs differ in classes or split: their numbers cannot be compared.")
    if len({g.task for g in measured if g.draws}) > 1:
        found.append("The generators differ in classes, reference images or features: their scores cannot be compared.")
    found += map(html.escape, judged_apart([g for g in measured if g.draws]))
    for draws in (False, True):
        streams = (r.streams.get("test") or {} for g in measured if g.draws == draws for r in g.measured)
        if len({json.dumps(stream.get("digest")) for stream in streams} - {"null"}) > 1:
            found.append("The runs were tested on different data (see the digests below).")
    found += [html.escape(said) for g in measured for said in (troubles(g) if g.draws else adaptation_said(g))]
    return '<ul class="cautions">' + "".join(f"<li>{f}</li>" for f in found) + "</ul>" if found else ""

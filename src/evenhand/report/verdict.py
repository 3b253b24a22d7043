"""The report's first sentence, and what a reader must know before believing it."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Sequence
from statistics import fmean, stdev

from evenhand.report.records import MEAN_RECALL, TAIL_RECALL, Metric, RunGroup

BADGE = '<b class="badge">selected on the test split (oracle)</b>'


def _said(group: RunGroup, metric: Metric) -> str:
    values = [v for _, v in group.values(metric)]
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f'<span class="keep">{fmean(values):.1f}{spread} %</span>'


def _defined(group: RunGroup, metric: Metric) -> bool:
    values = [v for _, v in group.values(metric)]
    return bool(values) and all(map(math.isfinite, values))


def verdict(groups: Sequence[RunGroup]) -> str:
    """Who is best on mean recall, and what that does to the tail, in one or two plain sentences."""
    return html.unescape(re.sub(r"<[^>]*>", "", verdict_html(groups)))


def verdict_html(groups: Sequence[RunGroup]) -> str:
    able = [g for g in groups if _defined(g, MEAN_RECALL)]
    if not able:
        return "Nothing to compare yet: mean recall was not run."
    fair = [g for g in able if not g.oracle] or able
    same = [g for g in fair if g.task == fair[0].task]
    where = "" if len(same) == len(fair) else f" among the {len(same)} comparable"
    ranked = sorted(same, key=lambda g: -fmean(v for _, v in g.values(MEAN_RECALL)))
    best, rival = ranked[0], ranked[1] if len(ranked) > 1 else None
    name, how = f"<strong>{html.escape(best.name)}</strong>", f"{_said(best, MEAN_RECALL)}, {best.size}"
    text = f"Best mean recall{where}: {name} ({how})" if rival else f"Mean recall of {name}: {how}"
    if _defined(best, TAIL_RECALL):
        text += f"; tail recall {_said(best, TAIL_RECALL)}"
        if rival and _defined(rival, TAIL_RECALL):
            text += f" against {_said(rival, TAIL_RECALL)} for {html.escape(rival.name)}"
    remark = _weight(best, rival)
    return f'{text}. <span class="remark">{remark}</span>' if remark else f"{text}."


def _weight(best: RunGroup, rival: RunGroup | None) -> str:
    """Whether the lead over the runner-up is more than the seeds' own spread."""
    if rival is None:
        return ""
    ours, theirs = ([v for _, v in g.values(MEAN_RECALL)] for g in (best, rival))
    if min(len(ours), len(theirs)) < 2:
        return "With one seed on a side, chance cannot be told from merit."
    lead, spread = fmean(ours) - fmean(theirs), max(stdev(ours), stdev(theirs))
    if lead > spread:
        return ""
    return f"The lead over {html.escape(rival.name)} ({lead:.1f}) lies within the spread of the seeds."


def cautions(groups: Sequence[RunGroup]) -> str:
    """What a reader must know before comparing the numbers."""
    measured = [g for g in groups if g.measured]
    remark = "its numbers are optimistic and take no part in the comparison"
    found = [f"{BADGE} {html.escape(g.name)}: {remark}." for g in groups if g.oracle]
    if any(g.measure.get("split") != "test" for g in measured):
        splits = ", ".join(f"{g.name}: {g.measure.get('split', 'unknown')}" for g in measured)
        found.append(f"Not everything was measured on the test split ({html.escape(splits)}).")
    if len({g.task for g in measured}) > 1:
        found.append("The runs differ in classes or split: their numbers cannot be compared.")
    digests = {json.dumps((r.streams.get("test") or {}).get("digest")) for g in measured for r in g.measured}
    if len(digests - {"null"}) > 1:
        found.append("The runs were tested on different data (see the digests below).")
    return '<ul class="cautions">' + "".join(f"<li>{f}</li>" for f in found) + "</ul>" if found else ""

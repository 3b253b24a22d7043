"""The illustrated sections on generators: what was measured how, every class as drawn, collapse, curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from evenhand.report import class_plots, figures, plots
from evenhand.report.metrics import CLASS_FID
from evenhand.report.records import NOT_RUN, RunGroup, RunRecord, class_order
from evenhand.report.svg import colour

ALARM = 0.5  # of the patterns of real images, unless the recipe says otherwise
EXPLODED = 2.0  # times the median class's spectral norm
RARE = 0.1  # of an even share: below, a class is hardly drawn
TRACED = 8  # classes with a line of their own, the rarest
CURVES = {
    "fid": "FID", "label_kl": "label KL", "diversity": "diversity, median class",
    "diversity_min": "diversity, worst class", "patterns_min": "patterns, worst class",
    "collapsed": "collapsed classes", "sigma_max": "largest spectral norm",
}  # fmt: skip
TRACES = {
    "sigma": "Spectral norm of a class's conditional-BatchNorm gains, largest over layers: one that explodes goes "
    "with collapse.",
    "diversity": "Diversity: spread of a class's drawn images over that of its real ones, in features.",
    "patterns": "Patterns: effective number of different images among those drawn of a class, over that of real ones.",
    "frequency": "Effective frequency: how often the class was drawn lately, as the balancing term sees it.",
}


def judged_apart(groups: Sequence[RunGroup]) -> list[str]:
    """One line if the runs' features come from different weights, none if they agree or do not say."""
    users: dict[str, list[str]] = {}
    for record in (r for g in groups for r in g.measured):
        if digest := (record.measure or {}).get("features_digest"):
            users.setdefault(digest, []).append(record.name)
    if len(users) < 2:
        return []
    who = "; ".join(f"{digest[:8]} {_few(names)}" for digest, names in users.items())
    return [
        f"Not all generators were judged by the same network ({who}): part of the differences is its. Train one "
        "annotator, name its folder in needs.annotator, and train again."
    ]


def basis(groups: Sequence[RunGroup]) -> list[str]:
    """What the scores depend on, once for all that agree."""
    users: dict[str, list[str]] = {}
    for group in groups:
        if group.measured:
            users.setdefault(_basis(group.measure), []).append(group.name)
    return [f"{', '.join(names)}. {said}" if len(users) > 1 else said for said, names in users.items()]


def _basis(measure: Mapping[str, Any]) -> str:
    known = measure.get
    digest = f", weights {known('features_digest')}" if "features_digest" in measure else ""
    shares = "Label KL: of the annotator's labels to even shares. " if "label_kl" in measure else ""
    score = known("classifier_score") or {}
    trained = (
        f"CAS: accuracy on the real test split of '{score['recipe']}' trained on {score['drawn']:,} drawn images. "
        if score
        else ""
    )
    by_class = "Head, mid and tail FID: means of their classes' FIDs. " if "group_fid" in measure else ""
    return (
        f"Features: {known('features')}{digest}, {known('dimensions')} dimensions; resize: {known('resize')}. "
        f"Reference: {known('reference')}; {known('fake_count', 0):,} drawn. "
        f"KID over {known('kid_subsets')} subsets of {known('kid_subset_size', 0):,}; precision, recall, density and "
        f"coverage with k = {known('k')} on {known('manifold_real_count', 0):,} real and "
        f"{known('manifold_fake_count', 0):,} drawn. {shares}{by_class}{trained}"
        "Scores of other features or counts do not compare."
    )


def drawn_section(groups: Sequence[RunGroup], colours: Mapping[str, str]) -> str:
    """Shares and FIDs of the classes, once for each set of training data among the runs."""
    return figures.each_set_of_classes(groups, lambda members, classes: _drawn(members, classes, colours))


def _drawn(members: Sequence[RunGroup], classes: figures.ClassData, colours: Mapping[str, str]) -> str:
    text = ""
    if shares := {g.name: found for g in members if (found := g.parts("class_shares"))}:
        caption = "Share of each class in what is drawn, by the annotator's labels. Dots: share of the training data."
        text += figures.figure(class_plots.plot_shares(*classes, shares, colours), caption)
    if scores := {g.name: found for g in members if (found := g.parts("class_fid"))}:
        values = {name: [[score["value"] for score in seed] for seed in seeds] for name, seeds in scores.items()}
        doubtful = {name: {s["label"] for seed in seeds for s in seed if s["flag"]} for name, seeds in scores.items()}
        caption = "FID of each class; a class never drawn has none."
        if any(doubtful.values()):
            caption += " Hollow: too few images of the class, real or drawn, for the number to be trusted."
        drawing = class_plots.plot_scores(*classes, CLASS_FID, values, colours, doubtful)
        text += figures.figure(drawing, caption)
    if not text:
        return f'<p class="none">Shares and FID per class: {NOT_RUN}.</p>'
    return text + figures.class_table(members, "Classes as a table")


def troubles(group: RunGroup) -> list[str]:
    """Classes that look collapsed, are about to, or are hardly drawn, by name and with how many seeds agree."""
    alike: dict[int, list[float]] = {}
    wild: dict[int, list[float]] = {}
    absent: dict[int, list[float]] = {}
    for record in group.measured:
        measure = record.measure or {}
        for k, value in enumerate(measure.get("patterns") or ()):
            if value is not None and value < _alarm(record):
                alike.setdefault(k, []).append(value)
        norms = [max(of_class) for of_class in zip(*measure.get("sigma_gain") or (), strict=True)]
        for k, value in enumerate(norms):
            if value > EXPLODED * median(norms):
                wild.setdefault(k, []).append(value)
        shares = measure.get("class_shares") or ()
        for k, share in enumerate(shares):
            if share < RARE / len(shares):
                absent.setdefault(k, []).append(100 * share)
    found = []
    if alike:
        names = _named(group, alike, "{:.2f}")
        found.append(
            f"{group.name}: images of {names} are much alike: in brackets, their effective number of patterns over "
            "that of as many real ones. Collapse?"
        )
    if wild:
        names = _named(group, wild, "{:.2f}")
        found.append(f"{group.name}: the spectral norm of {names} is over twice the median class's. Collapse ahead?")
    if absent:
        names = _named(group, absent, "{:.1f}\u00a0%")
        found.append(f"{group.name}: hardly draws {names}; even shares would be {100 / len(shares):.2g}\u00a0%.")
    return found


def _alarm(record: RunRecord) -> float:
    method = (record.recipe or {}).get("method") or {}
    return float((method.get("measure") or {}).get("alarm", ALARM))


def _named(group: RunGroup, classes: Mapping[int, Sequence[float]], form: str, most: int = 5) -> str:
    seeds, names = len(group.measured), group.measure["classes"]
    told = []
    for k, values in sorted(classes.items(), key=lambda item: (-len(item[1]), fmean(item[1]))):
        often = f", {len(values)} of {seeds} seeds" if seeds > 1 else ""
        told.append(f"‘{names[k]}’ ({form.format(fmean(values))}{often})")
    more = [f"{len(told) - most} more"] if len(told) > most else []
    return ", ".join(told[:most] + more)


def _few(names: Sequence[str], most: int = 3) -> str:
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return ", ".join([*names[:most], *more])


def curves_section(groups: Sequence[RunGroup], colours: Mapping[str, str]) -> str:
    """What was evaluated during training, then the rarest classes one by one."""
    panels = {}
    for key, title in CURVES.items():
        lines = [line for g in groups for r in g.records if (line := _line(g.name, r, key))]
        if any(value for line in lines for value in line[2]):  # nothing collapsed: no panel
            panels[title] = lines
    if not panels:
        return figures.NOTHING
    caption = "On the validation split. One line per run; runs of one colour differ in their seed."
    text = figures.figure(plots.plot_curves(panels, colours, "step"), caption)
    return text + "".join(_trace(groups, prefix, said) for prefix, said in TRACES.items())


def _trace(groups: Sequence[RunGroup], prefix: str, said: str) -> str:
    """A panel per group of runs, a colour per class."""
    panels: dict[str, list[Any]] = {}
    for group in groups:
        for name in _rarest(group):
            lines = [line for r in group.records if (line := _line(name, r, f"{prefix}:{name}"))]
            if lines:
                panels.setdefault(group.name, []).extend(lines)
    if not panels:
        return ""
    names = dict.fromkeys(line[0] for lines in panels.values() for line in lines)
    tints = {name: colour(i) for i, name in enumerate(names)}
    return figures.figure(plots.plot_curves(panels, tints, "step", alike=True), f"{said} The rarest classes.")


def _rarest(group: RunGroup) -> list[str]:
    measure = group.measure
    counts, named = measure.get("train_counts") or [], measure.get("groups") or {}
    tail = set(named.get("tail") or range(len(counts)))
    return [measure["classes"][k] for k in class_order(counts, named) if k in tail][-TRACED:]


def _line(name: str, record: RunRecord, key: str) -> tuple[str, list[float], list[float]] | None:
    rows = [row for row in record.log if row.get("kind") == "val" and figures.finite(row.get(key))]
    return (name, [row["step"] for row in rows], [row[key] for row in rows]) if rows else None

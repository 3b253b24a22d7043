"""The sections on generators: what was measured how, every class as drawn, pictures, collapse, curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup
from pydantic import BaseModel

from evenhand.report.advice import of_generator
from evenhand.report.cautions import cautions
from evenhand.report.charts import class_plots, plots
from evenhand.report.classes import class_table, each_set_of_classes
from evenhand.report.curves import REPEATED, class_figure
from evenhand.report.gallery import pictures_section
from evenhand.report.markup import parts
from evenhand.report.reading import Judged
from evenhand.report.records import NOT_RUN, ClassData, Line, RunGroup, by_count
from evenhand.report.sections import Sections
from evenhand.report.tables import said as number_of
from evenhand.tasks.generate import GENERATE
from evenhand.tasks.metric import Metric

CLASS_FID = next(metric for metric in GENERATE.per_class if metric.key == "class_fid")
NEAR = Metric("near", "near copies", path=("copying", "near"))
COPIED = (
    "is nearer to a training image than all but 5\u00a0% of held-out images are: 5\u00a0% if nothing is copied, "
    "100\u00a0% if all is."
)
TRACED = 8  # classes with a line of their own, the rarest
CURVES = {
    "fid": "FID", "label_kl": "label KL", "diversity": "diversity, median class",
    "diversity_min": "diversity, worst class", "patterns_min": "patterns, worst class",
    "collapsed": "collapsed classes", "sigma_max": "largest spectral norm",
    "z_sensitivity": "z-sensitivity, mean of classes",
}  # fmt: skip
TRACES = {
    "share": "Share of a class in what is drawn, by the annotator's labels.",
    "sigma": "Spectral norm of a class's conditional-BatchNorm gains, largest over layers, or of its embedding: "
    "one that explodes goes with collapse.",
    "z_sensitivity": "z-sensitivity: share of the variance of StyleGAN2's styles that the noise gives a class; at 0 it "
    "draws one image.",
    "embedding_g": "Root mean square of a class's embedding in StyleGAN2's generator; noise that it outgrows is lost.",
    "embedding_d": "The same in the discriminator.",
    "diversity": "Diversity: spread of a class's drawn images over that of its real ones, in features.",
    "patterns": "Patterns: effective number of different images among those drawn of a class, over that of real ones.",
    "frequency": "Effective frequency: how often the class was drawn lately, as the balancing term sees it.",
}


def basis(groups: Sequence[RunGroup]) -> list[str]:
    """What the scores depend on, once for all that agree."""
    users: dict[str, list[str]] = {}
    for group in groups:
        users.setdefault(_basis(group), []).append(group.name)
    told = [f"{', '.join(names)}. {said}" if len(users) > 1 else said for said, names in users.items()]
    near = [f"{group.name} {number}" for group in groups if (number := number_of(group, NEAR))]
    return told + [f"Copies: {', '.join(near)} of what is drawn {COPIED}"] * bool(near)


def _basis(group: RunGroup) -> str:
    measure = group.measure
    known = measure.get
    digest = f", weights {known('features_digest')}" if "features_digest" in measure else ""
    told = [
        f"Features: {known('features')}{digest}, {known('dimensions')} dimensions; resize: {known('resize')}.",
        f"Reference: {known('reference')}; {known('fake_count', 0):,} drawn.",
        f"KID over {known('kid_subsets')} subsets of {known('kid_subset_size', 0):,}; precision, recall, density and "
        f"coverage with k = {known('k')} on {known('manifold_real_count', 0):,} real and "
        f"{known('manifold_fake_count', 0):,} drawn.",
    ]
    if "label_kl" in measure:
        told.append("Label KL: of the annotator's labels to even shares.")
    if "annotator_agreement" in measure:
        told.append("Agreement: share of images in which the annotator sees the class asked for.")
    if known("inception_score") is not None:
        told.append("Inception score: of the Inception network's own classes, one split.")
    if "group_fid" in measure:
        told.append("Head, mid and tail FID: means of their classes' FIDs.")
    if not {"patterns", "class_fid", "label_kl"} & measure.keys():
        told.append("No collapse alarm, and nothing of single classes: nobody names what is drawn (needs.annotator).")
    elif (found := known("patterns")) and all(value is None for value in found):
        told.append("No collapse alarm: no class has enough images, real and drawn, to compare.")
    if scores := group.parts("classifier_score"):
        trained = f"'{scores[0]['recipe']}' trained on {scores[0]['drawn']:,} drawn images"
        told.append(f"CAS: accuracy on the real test split of {trained}; labels: {_labelled(scores)}.")
    return " ".join([*told, "Scores of other features or counts do not compare."])


def _labelled(scores: Sequence[Mapping[str, Any]]) -> str:
    """Whose labels the drawn images had, over the seeds: each may have an annotator of its own."""
    by = dict.fromkeys(score.get("labels") or "not recorded" for score in scores)
    weights = dict.fromkeys(digest[:8] for score in scores if (digest := score.get("labels_digest")))
    return ", ".join(by) + f" (weights {', '.join(weights)})" * bool(weights)


def context(group: RunGroup) -> str:
    """What a FID needs beside it: whose features, how many real images, and numbers that fail in other ways."""
    known = group.measure.get
    beside = [f"{m.name} {number}" for m in map(GENERATE.metric, ("kid", "recall")) if (number := number_of(group, m))]
    images = f" against {known('real_count'):,} real images" if known("real_count") else ""
    judged = f"by {known('features')} features{images}" if known("features") else ""
    return ", ".join(part for part in (judged, " and ".join(beside)) if part)


def mended(measure: dict[str, Any]) -> dict[str, Any]:
    """Until version 0.1 the annotator's own score was called Inception's, and could be words on why there is none."""
    score, features = measure.get("inception_score"), str(measure.get("features", ""))
    if score is None or (not isinstance(score, str) and "inception" in features.lower()):
        return measure
    kept = {key: value for key, value in measure.items() if key != "inception_score"}
    return kept if isinstance(score, str) else {"annotator_score": score} | kept


def drawn_section(groups: Sequence[RunGroup], colours: Mapping[str, str]) -> Markup:
    """Shares and FIDs of the classes, once for each set of training data among the runs."""
    return each_set_of_classes(groups, lambda members, classes: _drawn(members, classes, colours))


def _drawn(members: Sequence[RunGroup], classes: ClassData, colours: Mapping[str, str]) -> Markup:
    text = Markup()
    if shares := {g.name: found for g in members if (found := g.parts("class_shares"))}:
        caption = "Share of each class in what is drawn, by the annotator's labels. Dots: share of the training data."
        text += parts.figure(class_plots.plot_shares(classes, shares, colours), caption)
    if scored := [g for g in members if g.parts("class_fid")]:
        values = {g.name: [[score["value"] for score in seed] for seed in g.parts("class_fid")] for g in scored}
        doubtful = {
            g.name: {k for k in range(len(classes[0])) for r in g.measured if r.doubtful(CLASS_FID, k)} for g in scored
        }
        caption = "FID of each class; a class never drawn has none."
        if any(doubtful.values()):
            caption += " Hollow: too few images of the class, real or drawn, for the number to be trusted."
        text += parts.figure(class_plots.plot_scores(classes, CLASS_FID, values, colours, doubtful), caption)
    if not text:
        return parts.missing(f"Shares and FID per class: {NOT_RUN}.")
    return text + class_table(members, "Classes as a table")


def curves_section(groups: Sequence[RunGroup], colours: Mapping[str, str]) -> Markup:
    """What was evaluated during training, then the rarest classes one by one."""
    panels = {title: [line for g in groups for line in _lines(g, g.name, key)] for key, title in CURVES.items()}
    panels = {title: lines for title, lines in panels.items() if any(any(y) for _, _, y in lines)}  # none collapsed?
    traced = {
        said: {g.name: [line for name in _rarest(g) for line in _lines(g, name, f"{key}:{name}")] for g in groups}
        for key, said in TRACES.items()
    }
    text = Markup()
    if panels:
        compared = "No validation split."
        if "FID" in panels:
            compared = "Compared with the validation split, where there is one."
        elif CURVES["diversity"] in panels:
            compared = "No validation split: variety is beside training images."
        text += parts.figure(plots.plot_curves(panels, colours, "step"), f"{compared} {REPEATED}")
    for said, lines in traced.items():
        text += class_figure(lines, f"{said} The rarest classes.")
    return text or parts.missing()


def _lines(group: RunGroup, name: str, key: str) -> list[Line]:
    """A line for each run that logged it, on its validation split or, without one, alone."""
    curves = (r.curve(name, "val", key) or r.curve(name, "traces", key) for r in group.records)
    return [line for line in curves if line]


def _rarest(group: RunGroup) -> list[str]:
    classes, counts, named = group.classes
    tail = set(named.get("tail") or range(len(counts)))
    return [classes[k] for k in by_count(group.classes) if k in tail][-TRACED:]


class ClassifierScore(BaseModel):
    recipe: str
    drawn: int
    labels: str | None = None  # whose; older files do not say
    labels_digest: str | None = None


class Parts(BaseModel):
    real_count: int = 0
    fake_count: int = 0
    kid_subset_size: int = 0
    manifold_real_count: int = 0
    manifold_fake_count: int = 0
    features_digest: str | None = None
    classifier_score: ClassifierScore | None = None
    class_fid: list[Judged] | None = None
    sigma_gain: list[list[float]] | None = None  # (layers, K)
    z_sensitivity: list[float] | None = None  # (K,)
    embedding_g: list[float] | None = None
    embedding_d: list[float] | None = None
    copying: dict[str, float] | None = None


SECTIONS = Sections(
    illustrated={
        "Pictures": pictures_section,
        "Classes as drawn": drawn_section,
        "Generators in training": curves_section,
    },
    notes=basis,
    cautions=cautions,
    context=context,
    advice=of_generator,
    mended=mended,
    parts=Parts,
    classes="How each class is drawn",
    remarks=(
        "diversity: spread of drawn over real features",
        "patterns: effective number of different images, drawn over real",
    ),
    doubt="* too few images of the class for a FID to be trusted",
)

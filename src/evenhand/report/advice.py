"""What to try next, in one line, from measured facts alone: the first rule of a table that has something to say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median

import numpy as np

from evenhand.measure.intervals import wilson
from evenhand.report.records import RunGroup, finite
from evenhand.report.scores import FEW, class_scores, counts_of

GUESSING = 1.5  # times the mean recall of chance
APART = 10.0  # points of recall between head and tail
UNSURE, JUDGED = 10.0, 50  # points of calibration error; samples below which so many are mostly chance
PAIRED = 0.25  # of all errors between two classes
MISSED = 0.05  # recall of a generator below which its FID says little
ALIKE, RARE = 0.5, 0.1  # patterns of a class over real ones; its share over an even one
REFERENCE = 1000  # real images below which a FID is mostly bias


def of_classifier(group: RunGroup) -> str:
    return _first(CLASSIFIERS, group)


def of_generator(group: RunGroup) -> str:
    return _first(GENERATORS, group)


def _first(rules: Sequence[Callable[[RunGroup], str]], group: RunGroup) -> str:
    return next((line for rule in rules if (line := rule(group))), "")


def _mean(group: RunGroup, key: str) -> float | None:
    values = [value for _, value in group.values(group.task.metric(key)) if finite(value)]
    return fmean(values) if values else None


def _guesses(group: RunGroup) -> str:
    found, classes = _mean(group, "mean_recall"), len(group.classes[0])
    if found is None or classes < 2 or found >= GUESSING * 100 / classes:
        return ""
    chance = f"mean recall {found:.1f} %, chance alone {100 / classes:.1f} %"
    return f"{group.name} hardly does better than guessing ({chance}): train longer{_other_start(group)}."


def _other_start(group: RunGroup) -> str:
    """Where else a run might have started from, given where it did."""
    record = group.records[0]
    if (record.recipe or {}).get("data", {}).get("embed"):
        return ", or tune the whole network (evenhand train FOLDER --fine-tune), whose features are frozen here"
    if record.facts.get("kind") == "vectors" or record.method.get("net", {}).get("weights"):
        return ""
    return ", or start from pretrained weights"


def _tail_behind(group: RunGroup) -> str:
    """Head far above tail, by more than the samples' own uncertainty."""
    scores, members = class_scores(group), group.classes[2]
    if not scores or not {"head", "tail"} <= members.keys():
        return ""
    shares, counts = {}, {}
    for name in ("head", "tail"):
        known = [scores[k] for k in members[name] if scores[k].samples]
        if not known:
            return ""
        shares[name] = fmean(fmean(v for _, v in score.recall) for score in known) / 100
        counts[name] = sum(score.samples for score in known)
    gap = 100 * (shares["head"] - shares["tail"])
    if gap < APART or wilson(shares["tail"], counts["tail"])[1] >= wilson(shares["head"], counts["head"])[0]:
        return ""
    fact = f"the tail’s recall lies {gap:.0f} points below the head’s ({100 * shares['tail']:.1f} %)"
    return f"{group.name}: {fact}: {_remedy(group)}."


def _remedy(group: RunGroup) -> str:
    """What the recipe does not do yet against a tail left behind."""
    method = group.records[0].method
    if method.get("name", "classifier") != "classifier":
        return 'compare with a classifier of method.loss = "la", or collect samples of the rarest classes'
    balanced = method.get("sampling", "instance") != "instance" or method.get("weighting", "none") != "none"
    loss = method.get("loss", "ce")
    if loss == "ldam" and not balanced:
        return 'try deferred weights with it (method.weighting = "drw")'
    if loss in ("la", "vs", "ldam"):  # balanced sampling on top would count rare classes twice
        return "the loss favours rare classes already; collect samples of the rarest classes"
    if balanced:
        instead = 'method.loss = "la", method.sampling = "instance", method.weighting = "none"'
        return f"try logit adjustment in place of balancing ({instead})"
    return 'try logit adjustment (method.loss = "la") or balanced sampling (method.sampling = "class-balanced")'


def _unsure(group: RunGroup) -> str:
    before, after = _mean(group, "ece"), _mean(group, "ece_scaled")
    if before is None or before < UNSURE or group.measure.get("samples", JUDGED) < JUDGED:
        return ""
    if group.measure.get("split") == "val":  # where a temperature is fitted
        return ""
    fact = f"{group.name}: its confidences are off by {before:.1f} points (ECE)"
    if after is None:
        return f"{fact}: hold out validation (data.val_per_class), on which a temperature is fitted."
    if after < before - 1:
        heat = fmean(part["value"] for part in group.parts("temperature"))
        return f"{fact}: divide its logits by {heat:.2f}, fitted on validation, which leaves {after:.1f}."
    return ""


def _one_pair(group: RunGroup) -> str:
    found = [m for r in group.measured if (m := counts_of(r)) is not None]
    if not found or len(group.classes[0]) < 3:
        return ""
    errors = np.sum(found, 0)
    np.fill_diagonal(errors, 0)
    both = np.triu(errors + errors.T)
    a, b = divmod(int(both.argmax()), len(both))
    if both[a, b] < max(FEW, PAIRED * errors.sum()):
        return ""
    share, names = 100 * both[a, b] / errors.sum(), group.classes[0]
    pair = f"‘{names[a]}’ and ‘{names[b]}’"
    return f"{group.name}: {share:.0f} % of its mistakes are between {pair}: look at them below; are the labels right?"


def _few_tested(group: RunGroup) -> str:
    scores, names = class_scores(group), group.classes[0]
    if not scores or median(score.samples for score in scores) >= FEW:
        return ""
    rarest = sorted(range(len(scores)), key=lambda k: (scores[k].samples, k))[:3]
    told = ", ".join(f"{names[k]} {scores[k].samples}" for k in rarest)
    split = group.measure.get("split", "test")
    return (
        f"half of the classes have fewer than {FEW} samples in the {split} split ({told}): collect more before "
        "believing differences between classes."
    )


def _once(group: RunGroup) -> str:
    alone = len(group.measured) == 1
    return f"{group.name} was trained once: repeat it with --seed to tell merit from chance." if alone else ""


def _misses_most(group: RunGroup) -> str:
    found = _mean(group, "recall")
    if found is None or found >= MISSED:
        return ""
    return (
        f"{group.name} comes near hardly any real image (recall {found:.3f}): look at its pictures, train longer, or "
        "lower its learning rates; its FID says little yet."
    )


def _collapsed(group: RunGroup) -> str:
    few = [k for values in group.parts("patterns") for k, v in enumerate(values) if v is not None and v < ALIKE]
    if not few or group.records[0].method.get("name") == "gsr-gan":
        return ""
    names = list(dict.fromkeys(group.classes[0][k] for k in few))
    return f'{group.name}: images of {len(names)} classes are much alike: try gSR (method.name = "gsr-gan").'


def _unbalanced(group: RunGroup) -> str:
    even = RARE / max(1, len(group.classes[0]))
    few = {k for shares in group.parts("class_shares") for k, v in enumerate(shares) if v is not None and v < even}
    if not few or group.records[0].method.get("name") == "class-balancing-gan":
        return ""
    remedy = 'try the class-balancing term (method.name = "class-balancing-gan")'
    return f"{group.name} hardly draws {len(few)} of {len(group.classes[0])} classes: {remedy}."


def _small_reference(group: RunGroup) -> str:
    count = group.measure.get("real_count")
    if not isinstance(count, int) or count >= REFERENCE:
        return ""
    return f"only {count:,} real images judge {group.name}: a FID of so few is biased; compare KIDs, or hold out more."


CLASSIFIERS = (_guesses, _tail_behind, _unsure, _one_pair, _few_tested, _once)
GENERATORS = (_misses_most, _collapsed, _unbalanced, _small_reference, _once)

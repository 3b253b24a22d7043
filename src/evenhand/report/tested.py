"""Which samples runs were tested on, and whether they are the same."""

from __future__ import annotations

from collections.abc import Sequence

from evenhand.report.records import RunGroup, RunRecord

# Keys of [data] that say how samples are seen: digests are of that, too.
SEEN = ("size", "frame", "grey", "whole", "squares", "enlarge", "embed", "embed_size", "normalise", "text")


def tested_on(groups: Sequence[RunGroup]) -> tuple[str, str]:
    """What is wrong with the data that the runs were tested on, and what is only to be known; empty if nothing.

    Seeds that split the data anew are no fault as long as every group has the same splits.
    """
    seen = list(dict.fromkeys(str(_seen(group)) for group in groups))
    if len(seen) > 1 and all(compare(groups[0], other) for other in groups[1:]):  # each way of seeing by itself
        told = [tested_on([group for group in groups if str(_seen(group)) == way]) for way in seen]
        return next((wrong for wrong, _ in told if wrong), ""), next((known for _, known in told if known), "")
    by_group = [{(str(r.split_seed), d) for r in g.measured if (d := _digest(r, "test"))} for g in groups]
    known = [pairs for pairs in by_group if pairs]
    pairs = {pair for of_group in known for pair in of_group}
    if len({digest for _, digest in pairs}) < 2:
        return "", ""
    if len({split for split, _ in pairs}) < len(pairs):  # one split, two contents
        return "The runs were tested on different data (see the digests below).", ""
    if any(of_group != pairs for of_group in known):
        return "The runs were tested on different splits of the data (data.split_seed): compare those of the same.", ""
    return "", "Each seed splits the data anew (data.split_seed): test samples vary with it, and the spread is of both."


def compare(one: RunGroup, other: RunGroup) -> bool:
    """Whether the numbers of two groups compare: judged alike, on the same samples as far as is known.

    Where the groups see their samples differently (at another side, as features) digests differ anyway; equal splits
    with equally many samples then count as the same.
    """
    if one.comparable_key != other.comparable_key:
        return False
    digests, splits, sizes = ([of(one), of(other)] for of in (_digests, _splits, _sizes))
    if not all(digests) or digests[0] == digests[1]:
        return True
    return _seen(one) != _seen(other) and splits[0] == splits[1] and sizes[0] == sizes[1]


def _digests(group: RunGroup) -> set[str]:
    return {d for r in group.measured if (d := _digest(r, group.measure.get("split", "test")))}


def _splits(group: RunGroup) -> set[str]:
    return {str(r.split_seed) for r in group.measured}


def _sizes(group: RunGroup) -> set[int | None]:
    return {(r.measure or {}).get("samples") for r in group.measured}


def _seen(group: RunGroup) -> list[object]:
    data = (group.records[0].recipe or {}).get("data", {})
    return [data.get(key) for key in SEEN]


def _digest(record: RunRecord, split: str) -> str | None:
    found: str | None = record.streams.get(split, {}).get("digest")
    return found

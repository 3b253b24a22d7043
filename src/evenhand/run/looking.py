"""``evenhand look``: findings in words, for the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evenhand.data.sources.paths import few
from evenhand.run.advice import Advice
from evenhand.run.findings import Findings
from evenhand.run.objects import Objects

TOLD_APART = 0.75  # from this share on two folders count as different
SHOWN = 10  # findings of one kind that are listed
SKIPPED = ", or set data.skip_unreadable"  # does not hold for scenes


def tell(findings: Findings, advice: list[Advice], say: Console | None = None) -> None:
    """Print everything: counts of every class, problems, then what to do."""
    say = say or Console()
    if findings.counts:
        say.print(class_table(findings))
    for line in (*facts(findings), *problems(findings)):
        say.print(line, highlight=False, markup=False, soft_wrap=True)
    for number, one in enumerate(advice[:3]):
        say.print(
            f"\n{'advice' if number == 0 else 'or'}: {one.command}", highlight=False, markup=False, soft_wrap=True
        )
        say.print(f"  why: {one.reason}", highlight=False, markup=False, soft_wrap=True)
        say.print(f"  measured: {one.evidence}", highlight=False, markup=False, soft_wrap=True)
    if advice and not findings.spoils:
        command = shlex.join(["evenhand", "train", str(findings.path)])
        say.print(f"\nor let it choose: {command}", highlight=False, markup=False, soft_wrap=True)


def class_table(findings: Findings) -> Table:
    """A row for every class, the most frequent first, a column for every split."""
    group = {name: which for which, names in findings.groups.items() for name in names}
    table = Table("class", *(escape(key) for key in findings.counts), "group", box=None)
    for column in table.columns[1:-1]:
        column.justify, column.overflow = "right", "fold"
    for name in sorted(findings.classes, key=lambda name: -findings.train[name]):
        counts = [str(some.get(name, 0)) for some in findings.counts.values()]
        table.add_row(escape(name), *counts, group.get(name, ""))
    table.add_row("[bold]all[/]", *(f"[bold]{sum(some.values())}[/]" for some in findings.counts.values()), "")
    return table


def facts(findings: Findings) -> Iterator[str]:
    """What is neither good nor bad."""
    total, hidden = sum(sum(some.values()) for some in findings.counts.values()), sum(findings.unlabelled.values())
    if findings.train:
        largest, smallest = max(findings.train.values()), min(findings.train.values())
        count = len(findings.classes)
        yield f"{count} classes, largest {largest}, smallest {smallest}: imbalance {findings.imbalance:.1f}"
    if findings.objects is not None:
        yield from _boxes(findings.objects, findings.unlabelled)
    elif hidden:
        yield f"unlabelled: {hidden} of {hidden + total} samples ({hidden / (hidden + total):.0%})"
    if findings.domains:
        yield f"domains: {', '.join(findings.domains)}"
    if (p := findings.pictures) is not None:
        yield (
            f"sizes: {_size(p.smallest)} to {_size(p.largest)}, median {_size(p.median)}; width : height "
            f"{p.aspects[0]:.2f} to {p.aspects[2]:.2f}, median {p.aspects[1]:.2f}"
        )
        yield f"modes: {', '.join(f'{mode} {n}' for mode, n in p.modes.items())}"
        if findings.objects is None:
            yield f"frame: {p.frame} ({p.why}; data.frame says otherwise)"
    if findings.words is not None:
        yield f"words: median {findings.words[0]}, longest {findings.words[1]}"


def problems(findings: Findings) -> Iterator[str]:
    """What is wrong, errors first, each with what to do."""
    if findings.refused:
        yield f"error: {findings.refused}"
    for file, message in list(findings.unreadable.items())[:SHOWN]:
        message = message.removesuffix(SKIPPED) if findings.objects is not None else message
        yield f"error: {message}" if file in message else f"error: {file}: {message}"
    yield from _more(findings.unreadable)
    if findings.objects is not None:
        without = [name for name in findings.classes if findings.domains and not findings.train[name]]
        yield from _wrong_boxes(findings.objects, without)
    if findings.empty:
        yield f"error: empty class folders: {few(findings.empty)}; add images or remove them"
    if findings.lacks:
        yield f"error: {findings.lacks}"
    if findings.single and findings.objects is None:
        untested = "test" not in findings.counts
        told = f"they train{', but nothing is left to test them on (data.min_per_class)' * untested}; add images"
        yield f"warning: classes with a single sample: {few(findings.single)}; {told}"
    for near in (False, True):
        for across in ("splits", "classes", "unlabelled", ""):
            some = [c.names for c in findings.copies if (c.near, c.across) == (near, across)]
            if some:
                yield _copies(near, across, some, boxes=findings.objects is not None)
    if findings.blank:
        yield f"warning: {len(findings.blank)} blank images: {few(findings.blank)}; remove them"
    for (one, other), share in findings.shift.items():
        if share >= TOLD_APART:
            yield (
                f"warning: '{one}' and '{other}' differ: colours, sharpness and shape tell them apart in {share:.0%} "
                "of cases (50 %: not at all); what is learnt on one may fail on the other"
            )
        else:
            yield f"shift: '{one}' and '{other}' are told apart in {share:.0%} of cases (50 %: not at all)"
    if findings.ignored:
        yield f"ignored: {', '.join(f'{n} {suffix}' for suffix, n in sorted(findings.ignored.items()))}"


def _boxes(objects: Objects, unlabelled: Mapping[str, int]) -> Iterator[str]:
    told = [f"{key} {n} ({objects.bare[key]} without any box)" for key, n in objects.images.items()]
    yield f"images: {', '.join([*told, *(f'{key} {n} without annotations' for key, n in unlabelled.items())])}"
    if objects.sides is None or objects.aspects is None:
        return
    count = sum(objects.sizes.values())
    shares = ", ".join(f"{size} {n / count:.0%}" for size, n in objects.sizes.items())
    low, middle, high = objects.sides
    yield f"boxes: {shares} (COCO: below 32 x 32 and 96 x 96 pixels); side {low:.0f} to {high:.0f}, median {middle:.0f}"
    low, middle, high = objects.aspects
    yield f"their width : height {low:.2f} to {high:.2f}, median {middle:.2f}"
    if objects.optional:
        yield f"optional boxes (difficult, crowds): {objects.optional}, neither trained on nor counted as missed"


def _wrong_boxes(objects: Objects, without: Sequence[str]) -> Iterator[str]:
    """Errors stop training; of what sticks out the inside is kept."""
    yield from (f"error: {fault}" for fault in objects.faults[:SHOWN])
    yield from _more(objects.faults)
    if objects.missing:
        total = sum(objects.images.values())
        yield (
            f"error: {len(objects.missing)} of {total} images are missing: {few(objects.missing)}; restore or "
            "find them (look --root, data.root)"
        )
    if objects.flat:
        yield (
            f"error: {len(objects.flat)} boxes have no area inside their image, such as {objects.flat[0]}; correct or "
            "remove them"
        )
    if objects.resized:
        yield (
            f"warning: {len(objects.resized)} images have another size than their annotation says: "
            f"{few(objects.resized)}; the boxes may be misplaced: correct the annotation"
        )
    if objects.outside:
        yield f"warning: boxes stick out of {len(objects.outside)} images and are cut: {few(objects.outside)}"
    if objects.idle:
        yield f"warning: no image has a box of class {few(objects.idle)}: left out"
    if without:
        yield f"warning: no box to learn from for {few(without)}; add some, or remove the class"


def _copies(near: bool, across: str, some: list[tuple[str, ...]], *, boxes: bool) -> str:
    within = (
        ("info", "within a split", "data.val_share may part them")
        if boxes
        else ("info", "within a class", "held-out splits of ours keep them on one side")
    )
    weight, where, remedy = {
        "splits": ("warning", "in two splits", "the test then flatters: keep them in one split"),
        "classes": ("warning", "under two labels", "one label must be wrong: keep one"),
        "unlabelled": ("info", "without a label", "nothing more is learnt from these"),
        "": within,
    }[across]
    what = "near copies" if near else "exact copies"
    return f"{weight}: {len(some)} sets of {what} {where}, such as {' = '.join(some[0][:2])}; {remedy}"


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"


def _more(found: object) -> Iterator[str]:
    count = len(found)  # type: ignore[arg-type]
    if count > SHOWN:
        yield f"... and {count - SHOWN} more"

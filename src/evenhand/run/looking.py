"""``evenhand look``: findings in words, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evenhand.data.sources.paths import few
from evenhand.run.advice import Advice
from evenhand.run.findings import Findings

TOLD_APART = 0.75  # from this share on two folders count as different
SHOWN = 10  # findings of one kind that are listed


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
        say.print(f"\nor let it choose: evenhand train {findings.path}", highlight=False, markup=False, soft_wrap=True)


def class_table(findings: Findings) -> Table:
    """A row for every class, the most frequent first, a column for every split."""
    group = {name: which for which, names in findings.groups.items() for name in names}
    table = Table("class", *(escape(key) for key in findings.counts), "group", box=None)
    for column in table.columns[1:-1]:
        column.justify = "right"
    for name in sorted(findings.classes, key=lambda name: -findings.train[name]):
        counts = [str(some.get(name, 0)) for some in findings.counts.values()]
        table.add_row(escape(name), *counts, group.get(name, ""))
    table.add_row("[bold]all[/]", *(f"[bold]{sum(some.values())}[/]" for some in findings.counts.values()), "")
    return table


def facts(findings: Findings) -> Iterator[str]:
    """What is neither good nor bad."""
    total, hidden = sum(sum(some.values()) for some in findings.counts.values()), sum(findings.unlabelled.values())
    if findings.counts:
        largest, smallest = max(findings.train.values()), min(findings.train.values())
        count = len(findings.classes)
        yield f"{count} classes, largest {largest}, smallest {smallest}: imbalance {findings.imbalance:.1f}"
    if hidden:
        yield f"unlabelled: {hidden} of {hidden + total} samples ({hidden / (hidden + total):.0%})"
    if findings.domains:
        yield f"domains: {', '.join(findings.domains)}"
    if (p := findings.pictures) is not None:
        yield (
            f"sizes: {_size(p.smallest)} to {_size(p.largest)}, median {_size(p.median)}; width : height "
            f"{p.aspects[0]:.2f} to {p.aspects[2]:.2f}, median {p.aspects[1]:.2f}"
        )
        yield f"modes: {', '.join(f'{mode} {n}' for mode, n in p.modes.items())}"
        yield f"frame: {p.frame} ({p.why}; data.frame says otherwise)"
    if findings.words is not None:
        yield f"words: median {findings.words[0]}, longest {findings.words[1]}"


def problems(findings: Findings) -> Iterator[str]:
    """What is wrong, errors first, each with what to do."""
    if findings.refused:
        yield f"error: {findings.refused}"
    for file, message in list(findings.unreadable.items())[:SHOWN]:
        yield f"error: {message}" if file in message else f"error: {file}: {message}"
    yield from _more(findings.unreadable)
    if findings.empty:
        yield f"error: empty class folders: {few(findings.empty)}; add images or remove them"
    if findings.single:
        told = "they train, but nothing is left to test them on (data.min_per_class); add images"
        yield f"warning: classes with a single sample: {few(findings.single)}; {told}"
    for near in (False, True):
        for across in ("splits", "classes", ""):
            some = [c.names for c in findings.copies if (c.near, c.across) == (near, across)]
            if some:
                yield _copies(near, across, some)
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


def _copies(near: bool, across: str, some: list[tuple[str, ...]]) -> str:
    what = "near copies" if near else "exact copies"
    where = {"splits": "in two splits", "classes": "under two labels", "": "within a class"}[across]
    remedy = {
        "splits": "the test then flatters: keep them in one split",
        "classes": "one label must be wrong: keep one",
        "": "held-out splits of ours keep them on one side",
    }[across]
    example = " = ".join(some[0][:2])
    return f"{'warning' if across else 'info'}: {len(some)} sets of {what} {where}, such as {example}; {remedy}"


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"


def _more(found: object) -> Iterator[str]:
    count = len(found)  # type: ignore[arg-type]
    if count > SHOWN:
        yield f"... and {count - SHOWN} more"

"""What the journal's events amount to: who answered what, what is still open, where answers differ.

Events: ``{"name", "label", "labeller", "time"}`` is an answer (label null: skipped), with ``"settles": true`` the one
that ends a conflict; ``{"undo": name, "labeller", "time"}`` takes an answer back; ``{"class": name}`` adds a class.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from evenhand.data.labels import NONE, Answer, write_answers
from evenhand.errors import UserError
from evenhand.label.journal import Event, Journal
from evenhand.label.picks import Pick, Picks


@dataclass(frozen=True)
class Given:
    label: str | None
    labeller: str
    time: str
    settles: bool = False


class Answers:
    """All answers to some picks; a pick is done with ``needed`` answers, skips not counted against others' work."""

    def __init__(self, picks: Picks, journal: Journal, *, needed: int = 1, new_classes: bool = False) -> None:
        self.picks, self.journal = picks, journal
        self.needed, self.new_classes = needed, new_classes
        self.classes = list(picks.classes)
        self._rows = {row.name: row for row in picks.rows}
        self._given: dict[str, dict[str, Given]] = {row.name: {} for row in picks.rows}
        self._order: dict[str, list[str]] = {}  # by labeller: names in the order of the answers, for undo
        for number, event in enumerate(journal.events, 1):
            try:
                self._take(event)
            except (KeyError, TypeError) as error:
                why = f"no pick '{error.args[0]}'" if isinstance(error, KeyError) else "mistyped"
                raise UserError(
                    f"{journal.path} line {number} does not fit these picks ({why}); use another --out"
                ) from error

    def give(self, name: str, label: str | None, labeller: str, *, settles: bool = False) -> None:
        """Keep an answer: a class, NONE, or None for "skip"."""
        if name not in self._rows:
            raise UserError(f"no pick '{name}'")
        if label is not None and label != NONE and label not in self.classes:
            raise UserError(
                f"'{label}' is none of the {len(self.classes)} classes; choose one of them, or none of these"
            )
        if settles and label is None:
            raise UserError("a conflict is settled by a class, or by none of these")
        event: Event = {"name": name, "label": label, "labeller": labeller, "time": _now()}
        self._keep(event | ({"settles": True} if settles else {}))

    def undo(self, labeller: str) -> Pick | None:
        """Take back this labeller's last answer that stands, also one from before a restart."""
        names = self._order.get(labeller, [])
        if not names:
            return None
        name = names[-1]
        self._keep({"undo": name, "labeller": labeller, "time": _now()})
        return self._rows[name]

    def add_class(self, name: str) -> None:
        name = name.strip()
        if not self.new_classes:
            raise UserError("no classes are added here; start with --new-classes to allow it")
        if not name or name.startswith("#"):
            raise UserError(f"'{name}' cannot be a class; give a word that does not begin with #")
        if name not in self.classes:
            self._keep({"class": name})

    def of(self, name: str) -> dict[str, Given]:
        return self._given[name]

    def open_for(self, labeller: str) -> list[Pick]:
        """In order of rank: not yet seen by this labeller, and not answered by enough others."""
        return [row for row in self.picks.rows if labeller not in self._given[row.name] and not self.done(row.name)]

    def done(self, name: str) -> bool:
        given = self._given[name].values()
        return any(a.settles for a in given) or sum(a.label is not None for a in given) >= self.needed

    def conflicts(self) -> list[Pick]:
        """Picks with different answers that nobody has settled."""
        return [row for row in self.picks.rows if len({answer.label for answer in self._final(row.name)}) > 1]

    def rows(self) -> list[Answer]:
        """Of labels.csv: each answer that counts, in the order of picks; a pick that was only skipped, once."""
        found = []
        for row in self.picks.rows:
            kept = self._final(row.name) or list(self._given[row.name].values())[:1]
            found += [Answer(row.name, given.label or "", given.labeller, given.time) for given in kept]
        return found

    def write(self, path: Path) -> None:
        write_answers(path, self.rows())

    def _final(self, name: str) -> list[Given]:
        """The settling answer alone, or all that are not skips."""
        given = [answer for answer in self._given[name].values() if answer.label is not None]
        return [answer for answer in given if answer.settles][-1:] or given

    def _keep(self, event: Event) -> None:
        self.journal.append(event)
        self._take(event)

    def _take(self, event: Event) -> None:
        if "class" in event:
            if event["class"] not in self.classes:
                self.classes.append(str(event["class"]))
            return
        labeller = str(event["labeller"])
        order = self._order.setdefault(labeller, [])
        if "undo" in event:
            self._given[event["undo"]].pop(labeller, None)
            order[:] = [name for name in order if name != event["undo"]]
            return
        name, label = event["name"], event["label"]
        if not (label is None or isinstance(label, str)):
            raise TypeError(label)
        self._given[name].pop(labeller, None)  # a changed answer is the last one given
        self._given[name][labeller] = Given(label, labeller, str(event.get("time", "")), event.get("settles") is True)
        order[:] = [known for known in order if known != name] + [name]


def summary(answers: Answers) -> str:
    """One line for the terminal."""
    rows = answers.picks.rows
    done, open_ = sum(answers.done(row.name) for row in rows), len(answers.conflicts())
    differ = f", {open_} with different answers" if open_ else ""
    return f"{done} of {len(rows)} labelled{differ}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

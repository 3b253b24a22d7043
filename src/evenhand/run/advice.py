"""What to do about findings: the rules stand in ``advice.toml``, each with its reason and what was measured."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from evenhand.run.findings import Findings
from evenhand.run.tables import literal

TESTED, HELD, FIFTH = 0.2, 5, 5  # data.test_share; images of a class that few-labels holds out; one in so many may be
UNUSED = "; the {hidden} unlabelled samples are not used"


@dataclass(frozen=True)
class Advice:
    """A recipe to train, with the values to set, why, and the evidence for it."""

    name: str
    recipe: str
    set: tuple[str, ...]
    reason: str
    evidence: str

    @property
    def command(self) -> str:
        return shlex.join(["evenhand", "train", self.recipe, *(part for key in self.set for part in ("--set", key))])


def advise(findings: Findings, *, sources: Sequence[str] = (), target: str = "") -> list[Advice]:
    """The rules that fit, best first; of several with the same settings the first. Too few classes fit none.

    ``sources`` and ``target`` are domains that somebody has named.
    """
    if findings.lacks:
        return []
    said: dict[tuple[str, tuple[str, ...]], Advice] = {}
    for rule in rules():
        if _fits(rule["when"], findings):
            told = _filled(findings, sources, target)
            few = () if _spares_validation(findings) else rule.get("set_if_few", ())
            values = tuple(value.format(**told) for value in (*rule["set"], *few))
            unused = "" if rule.get("unlabelled") or not _hidden(findings) else rule.get("unused", UNUSED)
            reason = (rule["reason"] + unused).format(**told)
            new = Advice(rule["name"], rule["recipe"], values, reason, rule["evidence"])
            said.setdefault((new.recipe, new.set), new)
    return list(said.values())


def rules() -> list[dict[str, Any]]:
    found = tomllib.loads((files("evenhand.run") / "advice.toml").read_text(encoding="utf-8"))["rule"]
    assert isinstance(found, list)
    return found


def _filled(findings: Findings, sources: Sequence[str], target: str) -> dict[str, Any]:
    """What rules speak of. A domain to work on is none to learn from, whichever of the two was named."""
    sources = sources or [domain for domain in findings.domains if domain != target][:1]
    target = target or next((domain for domain in findings.domains if domain not in sources), "")
    return {
        "path": findings.path, "source": ", ".join(sources), "sources": literal(list(sources)), "target": target,
        "imbalance": findings.imbalance, "hidden": _hidden(findings), "share": _hidden_share(findings),
    }  # fmt: skip


def _hidden(findings: Findings) -> int:
    return sum(findings.unlabelled.values())


def _hidden_share(findings: Findings) -> float:
    return _hidden(findings) / max(1, sum(findings.train.values()) + _hidden(findings))


def _spares_validation(findings: Findings) -> bool:
    """Whether validation is there, or few-labels' own is at most a fifth of the rarest class's labels."""
    splits = {key.rpartition("/")[2] for key in findings.counts}
    left = (1 if "test" in splits else 1 - TESTED) * min(findings.train.values(), default=0)
    return "val" in splits or left >= FIFTH * HELD


def _fits(when: dict[str, Any], findings: Findings) -> bool:
    holds = {
        "kind": lambda wanted: findings.kind == wanted,
        "domains": lambda least: len(findings.domains) >= least,
        "domains_below": lambda most: len(findings.domains) < most,
        "unlabelled_share": lambda least: _hidden_share(findings) >= least,
        "imbalance": lambda least: findings.imbalance >= least,
        "imbalance_below": lambda most: findings.imbalance < most,
        "samples": lambda most: sum(findings.train.values()) <= most,
    }
    return not findings.refused and all(holds[key](value) for key, value in when.items())

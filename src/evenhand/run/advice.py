"""What to do about findings: the rules stand in ``advice.toml``, each with its reason and what was measured."""

from __future__ import annotations

import shlex
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from evenhand.run.findings import Findings


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


def advise(findings: Findings) -> list[Advice]:
    """The rules that fit, best first; of several with the same recipe and settings the first. One class fits none."""
    if findings.alone:
        return []
    said: dict[tuple[str, tuple[str, ...]], Advice] = {}
    for rule in rules():
        if _fits(rule["when"], findings):
            told = _filled(findings)
            values = tuple(value.format(**told) for value in rule["set"])
            new = Advice(rule["name"], rule["recipe"], values, rule["reason"].format(**told), rule["evidence"])
            said.setdefault((new.recipe, new.set), new)
    return list(said.values())


def rules() -> list[dict[str, Any]]:
    found = tomllib.loads((files("evenhand.run") / "advice.toml").read_text(encoding="utf-8"))["rule"]
    assert isinstance(found, list)
    return found


def _filled(findings: Findings) -> dict[str, Any]:
    source, target = (*findings.domains, "", "")[:2]
    return {"path": findings.path, "source": source, "target": target, "imbalance": findings.imbalance}


def _fits(when: dict[str, Any], findings: Findings) -> bool:
    labelled, hidden = sum(findings.train.values()), sum(findings.unlabelled.values())
    share = hidden / max(1, labelled + hidden)
    holds = {
        "kind": lambda wanted: findings.kind == wanted,
        "domains": lambda least: len(findings.domains) >= least,
        "domains_below": lambda most: len(findings.domains) < most,
        "unlabelled_share": lambda least: share >= least,
        "imbalance": lambda least: findings.imbalance >= least,
        "imbalance_below": lambda most: findings.imbalance < most,
        "samples": lambda most: labelled <= most,
    }
    return not findings.refused and all(holds[key](value) for key, value in when.items())

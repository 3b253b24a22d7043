"""The papers' values of the terms in every GAN recipe and variant: [method.balance], [method.gsr]."""

from __future__ import annotations

from typing import Any

import pytest

from evenhand.run.recipe import load_recipe, recipe_names, validate

BALANCE = {
    "rule": "balance", "trade_off": 0.5, "form": "share", "cycle": 2000, "forget": 0.5, "weight": 1.0, "floor": 0.01,
    "labels": "even",
}  # fmt: skip
GSR = {"rule": "gsr", "strength": 0.5, "alpha": 0.99, "form": "mean", "iterations": 4}
RELEASED = {"trade_off": 10.0, "form": "mean-one", "weight": 0.5}
MANY = {"form": "mean-one", "cycle": 1, "forget": 0.005, "weight": 0.005}  # of iNaturalist's classes
OFF, NONE = {"trade_off": 0.0}, {"strength": 0.0}
RARE = {"alpha": 0.999}

PAPERS: dict[str, dict[str, dict[str, Any]]] = {
    "cbgan-cifar10": {
        "": RELEASED, "balance": RELEASED, "sndcgan": RELEASED | OFF, "acgan": RELEASED | OFF,
        "cgan": RELEASED | OFF, "thesis": {"trade_off": 10.0}, "entropy": RELEASED | {"rule": "entropy"},
        "small": {"cycle": 200},
    },
    "cbgan-cifar100": {
        "": RELEASED | {"trade_off": 0.5}, "balance": RELEASED | {"trade_off": 0.5}, "snresgan": RELEASED | OFF,
        "acgan": RELEASED | OFF, "cgan": RELEASED | OFF,
    },
    "cbgan-lsun": {
        "": RELEASED, "balance": RELEASED, "snresgan": RELEASED | OFF, "acgan": RELEASED | OFF, "cgan": RELEASED | OFF,
    },
    "cbgan-inaturalist": {
        "": MANY | {"labels": "inverse"}, "balance": MANY | {"labels": "inverse"}, "even-labels": MANY,
        "snresgan": MANY | OFF, "cgan": MANY | OFF, "acgan": MANY | OFF,
        "acgan-classifier": MANY | {"rule": "classify"},
    },
    "cbgan-fashion": {
        "": {"cycle": 100}, "balance": {"cycle": 100}, "sndcgan": {"cycle": 100} | OFF, "acgan": {"cycle": 100} | OFF,
        "cgan": {"cycle": 100} | OFF, "entropy": {"cycle": 100, "rule": "entropy"},
        "released": {"cycle": 100} | RELEASED | {"trade_off": 2.0},
        "acgan-classifier": {"cycle": 100, "rule": "classify"},
    },
    "gsr-cifar10": {
        "": RARE, "sngan-gsr": RARE, "sngan-gsrip": RARE | {"rule": "gsrip"}, "sngan": RARE | NONE,
        "sngan-gsn": RARE | NONE, "lsgan": RARE | NONE, "sngan-plain": RARE | NONE, "sngan-plain-gsr": RARE,
        "biggan": RARE | NONE, "biggan-gsr": {},
    },
    "gsr-lsun": {
        "": RARE, "sngan-gsr": RARE, "sngan-gsr-128": RARE, "lsgan": RARE | NONE, "sngan": RARE | NONE,
        "biggan": RARE | NONE, "biggan-gsr": {}, "sngan-128": RARE | NONE, "biggan-128": RARE | NONE,
        "biggan-gsr-128": {"strength": 0.01},
    },
    "gsr-inaturalist": {
        "": RARE | {"strength": 0.01}, "biggan-gsr": RARE | {"strength": 0.01}, "biggan": RARE | NONE,
    },
    "gsr-animalface": {"": {}, "biggan-gsr": {}, "biggan": NONE},
    "gsr-fashion": {
        "": {}, "gsr": {}, "gsr-help": {}, "gsrip": {"rule": "gsrip"}, "sngan": NONE, "gsn": NONE, "lsgan": NONE,
        "sngan-help": NONE,
    },
}  # fmt: skip


def test_all_are_here() -> None:
    assert PAPERS.keys() == {name for name in recipe_names() if name.startswith(("cbgan", "gsr"))}
    for name, variants in PAPERS.items():
        assert variants.keys() == {"", *load_recipe(name).variants}


@pytest.mark.parametrize("name", PAPERS)
def test_every_value_is_the_papers(name: str) -> None:
    balancing = name.startswith("cbgan")
    for variant, changes in PAPERS[name].items():
        method = load_recipe(f"{name}:{variant}" if variant else name).method
        expected = (BALANCE | changes, None) if balancing else (None, GSR | changes)
        found = tuple(None if table is None else table.model_dump() for table in (method.balance, method.gsr))
        assert found == expected, variant
        common = {key: getattr(method, key) for key in ("loss", "condition")}
        if variant in ("", "balance", "gsr", "biggan-gsr"):
            condition = "generator" if name == "cbgan-inaturalist" else "none" if balancing else "projection"
            assert common == {"loss": "relativistic" if balancing else "hinge", "condition": condition}


@pytest.mark.parametrize("name", ["gan", "class-balancing-gan", "gsr-gan"])
def test_any_gan_takes_both_terms(name: str) -> None:
    terms = {"balance": {"cycle": 3}, "gsr": {"strength": 2.0}}
    method = validate({"method": {"name": name, "condition": "projection", **terms}}, name).method
    assert method.balance.model_dump() == BALANCE | {"cycle": 3}
    assert method.gsr.model_dump() == GSR | {"strength": 2.0}

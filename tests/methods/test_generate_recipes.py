"""The papers' values in every GAN recipe and variant (specs 01 and 02, sections 4 and 6), and ours in small ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from evenhand.data import prepared
from evenhand.data.prepared import prepare_data
from evenhand.data.stream import Memory, Stream
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
        "": {}, "balance": {}, "snresgan": OFF, "acgan": OFF, "cgan": OFF,  # the thesis' values in the thesis' form
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
        "biggan-gsr-128": {}, "biggan-1000": RARE | NONE, "biggan-gsr-1000": {}, "biggan-1000-128": RARE | NONE,
        "biggan-gsr-1000-128": {},
    },
    "gsr-inaturalist": {
        "": RARE | {"strength": 0.01}, "biggan-gsr": RARE | {"strength": 0.01}, "biggan": RARE | NONE,
    },
    "gsr-animalface": {"": {}, "biggan-gsr": {}, "biggan": NONE},
    "gsr-fashion": {
        "": {}, "gsr": {}, "gsr-help": {}, "gsrip": {"rule": "gsrip"}, "sndcgan": NONE, "gsn": NONE, "lsgan": NONE,
        "sndcgan-help": NONE,
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


# everything around the terms

HELP = {"diffaugment": ["colour", "translation", "cutout"]}
NETS = {"width": None, "latent": None, "slope": None, "spectral_generator": False, "group_normalised": False}
PLAYERS = {"lr_g": 2e-4, "lr_d": 2e-4, "beta1": 0.5, "beta2": 0.999, "eps": 1e-6, "clip": None, "precision": "float32"}
BOTH = {
    **PLAYERS,
    **NETS,
    "skip": "raw",
    "diffaugment": [],
    "lecam": 0.0,
    "lecam_start": 1000,
    "r1": 0.0,
    "ema": 0.9999,
    "ema_warm": False,
}
DATA = {"imbalance": 100.0, "n_max": None, "size": None, "val_per_class": 0, "test_per_class": None, "kind": "exp"}
CB = {
    **BOTH, **DATA, "net": "sndcgan", "loss": "relativistic", "condition": "none", "batch": 256, "d_steps": 1,
    "ema_start": 20_000, "steps": 100_000, "augment": [], "features": "inception", "samples": 50_000,
}  # fmt: skip
GS = {
    **BOTH, **DATA, **HELP, "net": "sngan", "loss": "hinge", "condition": "projection", "batch": 64, "d_steps": 5,
    "ema_start": 1000, "augment": ["flip"], "features": "inception", "samples": 50_000,
}  # fmt: skip
# the settings of spec 02's table, by their letters
A = {"beta2": 0.9, "lecam": 0.3, "ema": 0.0, "steps": 120_000}
B = {"beta2": 0.999, "lecam": 0.1, "steps": 120_000}
C = {"beta2": 0.9, "lecam": 0.3, "steps": 200_000}
D = {"beta1": 0.0, "d_steps": 2, "lecam": 0.01, "ema_start": 20_000, "steps": 120_000, "batch": 256}
E = {"beta2": 0.999, "lecam": 0.01, "steps": 120_000}
F = {"lr_d": 4e-4, "lr_g": 1e-4, "beta2": 0.9, "lecam": 0.5, "steps": 120_000, "imbalance": 1000.0}
CIFAR, ROOMS = {"n_max": 5000}, {"n_max": 50_000, "size": 64, "val_per_class": 200, "test_per_class": 2000}
BIG, BIG80 = {"net": "biggan"}, {"net": "biggan", "width": 80}
ROOMY = BIG80 | {"latent": 120}
LARGE = {"size": 128}
SNGAN_128 = A | LARGE | {"ema": 0.9999, "lecam": 0.5}
ACGAN, CGAN = {"condition": "acgan"}, {"condition": "projection"}
RES = {"net": "sngan", "slope": 0.1}
SMALL = {"n_max": 2000, "val_per_class": 100, "batch": 32, "lr_g": 5e-4, "lr_d": 5e-4, "ema": 0.99,
         "features": "annotator", "samples": 5000}  # fmt: skip
CB_SMALL = SMALL | {"width": 16, "lr_g": 1e-3, "lr_d": 1e-4, "ema_start": 200, "steps": 4000}
GS_SMALL = SMALL | {"net": "sndcgan", "width": 16, "beta2": 0.9, "d_steps": 1, "ema_start": 100, "steps": 4000,
                    "diffaugment": []}  # fmt: skip
LITTLE_HELP = {"diffaugment": ["translation", "cutout"], "lecam": 0.3}

AROUND: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    "cbgan-cifar10": (CB | CIFAR, {
        "acgan": ACGAN, "cgan": CGAN,
        "small": {"n_max": 4900, "val_per_class": 100, "batch": 32, "width": 16, "ema": 0.999, "ema_start": 1000,
                  "features": "annotator", "samples": 5000, "steps": 10_000},
    }),
    "cbgan-cifar100": (CB | RES | {"n_max": 500, "imbalance": 10.0}, {"acgan": ACGAN, "cgan": CGAN}),
    "cbgan-lsun": (CB | RES | ROOMS | {"beta1": 0.0}, {"acgan": ACGAN, "cgan": CGAN}),
    "cbgan-inaturalist": (
        CB | RES | {"imbalance": 1.0, "size": 64, "beta1": 0.0, "spectral_generator": True, "condition": "generator",
                    "steps": 200_000},
        {"acgan": ACGAN, "cgan": CGAN},
    ),
    "cbgan-fashion": (CB | CB_SMALL, {"acgan": ACGAN, "cgan": CGAN, "acgan-classifier": {"condition": "generator"}}),
    "gsr-cifar10": (GS | A | CIFAR, {
        "sngan-gsn": {"group_normalised": True}, "lsgan": {"loss": "least-squares"},
        "sngan-plain": {"diffaugment": [], "lecam": 0.0}, "sngan-plain-gsr": {"diffaugment": [], "lecam": 0.0},
        "biggan": B | BIG | {"ema": 0.9999}, "biggan-gsr": B | BIG | {"ema": 0.9999},
    }),
    "gsr-lsun": (GS | A | ROOMS, {
        "lsgan": {"loss": "least-squares"},
        "biggan": C | ROOMY | {"ema": 0.9999}, "biggan-gsr": C | ROOMY | {"ema": 0.9999},
        "sngan-128": SNGAN_128, "sngan-gsr-128": SNGAN_128,
        "biggan-128": C | BIG80 | LARGE | {"ema": 0.9999}, "biggan-gsr-128": C | BIG80 | LARGE | {"ema": 0.9999},
        "biggan-1000": F | ROOMY | {"ema": 0.9999}, "biggan-gsr-1000": F | ROOMY | {"ema": 0.9999},
        "biggan-1000-128": F | ROOMY | LARGE | {"ema": 0.9999},
        "biggan-gsr-1000-128": F | ROOMY | LARGE | {"ema": 0.9999},
    }),
    "gsr-inaturalist": (GS | D | BIG80 | {"latent": 100, "imbalance": 1.0, "size": 64}, {}),
    "gsr-animalface": (GS | E | BIG80 | {"imbalance": 1.0, "size": 64}, {}),
    "gsr-fashion": (GS | GS_SMALL, {
        "gsn": {"group_normalised": True}, "lsgan": {"loss": "least-squares"}, "sndcgan-help": LITTLE_HELP,
        "gsr-help": LITTLE_HELP,
    }),
}  # fmt: skip


def around(recipe: Any) -> dict[str, Any]:
    """What a recipe resolves to, beside its terms."""
    m, data = recipe.method, recipe.data
    same = ("beta1", "beta2", "eps", "clip", "precision")
    assert all(getattr(m.optim_g, key) == getattr(m.optim_d, key) for key in same)
    plain = ("loss", "condition", "batch", "d_steps", "diffaugment", "lecam", "lecam_start", "r1")
    plain += ("ema", "ema_start", "ema_warm")
    return {
        **{key: getattr(m.optim_g, key) for key in same}, "lr_g": m.optim_g.lr, "lr_d": m.optim_d.lr,
        **{key: getattr(m, key) for key in plain}, **{key: getattr(m.net, key) for key in [*NETS, "skip"]},
        **{key: getattr(data, key) for key in [*DATA, "augment"]}, "net": m.net.name, "steps": recipe.run.steps,
        "features": m.measure.features, "samples": m.measure.samples,
    }  # fmt: skip


@pytest.mark.parametrize("name", AROUND)
def test_every_value_around_the_terms_is_the_papers(name: str) -> None:
    assert AROUND.keys() == PAPERS.keys()
    base, changes = AROUND[name]
    assert changes.keys() <= PAPERS[name].keys()
    for variant in PAPERS[name]:
        recipe = load_recipe(f"{name}:{variant}" if variant else name)
        assert around(recipe) == base | changes.get(variant, {}), variant


@pytest.mark.parametrize(
    ("name", "size", "latent"),
    [
        ("cbgan-cifar10", 32, 128), ("cbgan-lsun", 64, 128), ("cbgan-inaturalist", 64, 128), ("gsr-cifar10", 32, 128),
        ("gsr-cifar10:biggan", 32, 80), ("gsr-lsun:biggan", 64, 120), ("gsr-lsun:biggan-128", 128, 120),
        ("gsr-inaturalist", 64, 100),
    ],
)  # fmt: skip
def test_noise_is_as_wide_as_the_papers(name: str, size: int, latent: int) -> None:
    method = load_recipe(name).method
    draws, _ = method.net.model_copy(update={"width": 1}).build(size, 3, 5, method.condition)
    assert draws.latent == latent


TAIL = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
ROOM_NAMES = ("bedroom", "conference_room", "dining_room", "kitchen", "living_room")


@pytest.mark.parametrize(
    ("name", "have", "classes", "counts", "held"),
    [
        ("cbgan-cifar10", 5000, 10, TAIL, 0),
        ("gsr-cifar10", 5000, 10, TAIL, 0),
        ("cbgan-lsun", 50_200, 5, [50_000, 15_811, 5000, 1581, 500], 200),
        ("gsr-lsun", 50_200, 5, [50_000, 15_811, 5000, 1581, 500], 200),
        ("gsr-lsun:biggan-1000", 50_200, 5, [50_000, 8891, 1581, 281, 50], 200),
        ("cbgan-cifar100", 500, 100, None, 0),
    ],
)
def test_training_counts_are_the_papers_with_validation_held_out(
    name: str, have: int, classes: int, counts: list[int] | None, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spec 01 and 02, section 4."""
    names = ROOM_NAMES if classes == 5 else tuple(f"c{k:02d}" for k in range(classes))

    def full(each: int, split: str) -> Stream:
        labels = torch.arange(classes).repeat(each)
        return Stream(Memory(torch.zeros(len(labels), 3, 1, 1, dtype=torch.uint8)), labels, names, split)

    monkeypatch.setattr(
        prepared, "read_set", lambda *_, **__: {"train": full(have, "train"), "test": full(2000, "test")}
    )
    data = prepare_data(load_recipe(name).data)
    if counts is None:
        assert (data.counts[:3], data.counts[-3:], sum(data.counts)) == ([500, 488, 477], [52, 51, 50], 19_573)
    else:
        assert data.counts == counts
    assert ("val" in data.streams) == bool(held)
    if held:
        assert data.streams["val"].counts == [held] * classes


@pytest.mark.parametrize("name", ["gan", "class-balancing-gan", "gsr-gan"])
def test_any_gan_takes_both_terms(name: str) -> None:
    terms = {"balance": {"cycle": 3}, "gsr": {"strength": 2.0}}
    method = validate({"method": {"name": name, "condition": "projection", **terms}}, name).method
    assert method.balance.model_dump() == BALANCE | {"cycle": 3}
    assert method.gsr.model_dump() == GSR | {"strength": 2.0}

"""Rooms of the house: what a module may load, seen from a fresh interpreter."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

from evenhand import pieces


def loaded(program: str) -> set[str]:
    show = "import sys; print('|'.join(name for name in sys.modules if name.startswith('evenhand')))"
    ran = subprocess.run([sys.executable, "-c", f"{program}; {show}"], capture_output=True, text=True, check=True)
    return set(ran.stdout.strip().split("|"))


def rooms(modules: set[str]) -> set[str]:
    return {name.split(".")[1] for name in modules if "." in name}


@pytest.mark.parametrize(
    "program",
    [
        "import evenhand.nets",
        "import evenhand.nets.hf, evenhand.nets.gan, evenhand.nets.biggan, evenhand.nets.vit, evenhand.nets.timm",
        "from evenhand.nets import build_net; build_net('resnet8', num_classes=2)",
    ],
)
def test_nets_load_neither_data_nor_pieces_nor_measure(program: str) -> None:
    assert rooms(loaded(program)) <= {"nets", "errors", "tokens"}


def test_a_network_is_imported_when_it_is_built() -> None:
    assert loaded("import evenhand.nets") & {f"evenhand.nets.{n}" for n in ("cifar", "vit", "text", "hf")} == set()
    assert "evenhand.nets.vit" in loaded("from evenhand.nets import build_net; build_net('vit-tiny', num_classes=2)")


def test_pieces_load_neither_methods_nor_run() -> None:
    names = sorted(module.name for module in pkgutil.iter_modules(pieces.__path__))
    assert {"sam", "losses"} <= set(names)
    assert not rooms(loaded(f"from evenhand.pieces import {', '.join(names)}")) & {"methods", "run", "report"}

"""The trees of deepforest, on tiny files of the same format."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evenhand.data.scenes import prepare_scenes
from evenhand.data.sets.pinned import DEEPFOREST
from evenhand.data.sets.trees import SIDE, SITES, load_trees
from evenhand.data.settings import DataSettings
from helpers import save_picture

BOXES = {  # of each photograph, as VOC counts
    "2019_YELL_2_528000_4978000_image_crop2": [("Tree", (11, 21, 50, 60)), ("Tree", (191, 101, 240, 140))],
    "2019_YELL_2_541000_4977000_image_crop": [("Tree", (5, 5, 30, 30))],
    "OSBS_029": [("Tree", (150, 10, 205, 60)), ("Tree", (210, 210, 240, 240))],
    "SOAP_061": [("Dead", (1, 1, 20, 20)), ("Alive", (301, 301, 330, 330))],
}
SIZES = {"2019_YELL_2_528000_4978000_image_crop2": (500, 250), "2019_YELL_2_541000_4977000_image_crop": (200, 200)}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path))
    folder = DEEPFOREST.folder / "deepforest" / "data"
    for seed, name in enumerate([*BOXES, "SOAP_031"]):
        width, height = SIZES.get(name, (400, 400))
        save_picture(folder / f"{name}.png", width, height, seed)
        things = "".join(
            f"<object><name>{kind}</name><bndbox><xmin>{a}</xmin><ymin>{b}</ymin><xmax>{c}</xmax><ymax>{d}</ymax>"
            "</bndbox></object>"
            for kind, (a, b, c, d) in BOXES.get(name, [])
        )
        size = f"<size><width>{width}</width><height>{height}</height></size>"
        if name in BOXES:
            (folder / f"{name}.xml").write_text(f"<annotation><filename>x.tif</filename>{size}{things}</annotation>")
    return folder


@pytest.mark.usefixtures("package")
def test_a_photograph_is_cut_into_tiles_that_cover_it() -> None:
    train = load_trees("yellowstone")["train"]
    places = [train.samples.name(row).partition("/")[2] for row in range(len(train))]
    assert places == ["0-0", "150-0", "300-0", "0-50", "150-50", "300-50"]  # 500 x 250
    assert train.fetch(torch.arange(6)).shape == (6, 3, SIDE, SIDE)
    first, second, third, *_ = train.target.objects
    assert first.boxes.tolist() == [[10, 20, 50, 60]]  # a fifth of the other tree is not enough
    assert second.boxes.tolist() == [[40, 100, 90, 140]]
    assert third.boxes.tolist() == []


@pytest.mark.usefixtures("package")
def test_trees_at_an_edge_are_cut_if_enough_of_them_is_seen() -> None:
    (test,) = load_trees("osbs").values()
    assert [found.boxes.tolist() for found in test.target.objects] == [
        [[149, 9, 200, 60]], [], [], [[9, 9, 40, 40]],
    ]  # fmt: skip


@pytest.mark.usefixtures("package")
def test_sites_are_domains_of_one_class() -> None:
    assert set(SITES) == {"yellowstone", "osbs", "soap"}
    data = prepare_scenes(DataSettings(set="trees", source=["yellowstone"], target="soap"))
    assert data.classes == ("tree",)
    sizes = {name: len(stream) for name, stream in data.streams.items()}
    assert sizes == {"source": 6, "val": 1, "target": 8, "test": 4}  # soap has a photograph without boxes
    assert data.streams["target"].target is None
    assert data.streams["test"].counts == [2]

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from evenhand.data.sources.files import Files
from evenhand.data.sources.soundness import find_problems
from evenhand.data.stream import Memory, Stream
from helpers import picture, save_picture, truncate


def test_trap_12_find_problems_names_every_file(tmp_path: Path) -> None:
    for seed, name in enumerate(("train/cat/1.png", "train/dog/1.png", "test/cat/1.png", "test/dog/1.png")):
        save_picture(tmp_path / name, seed=seed)
    shutil.copy(tmp_path / "train/cat/1.png", tmp_path / "test/cat/leak.png")
    bad = truncate(save_picture(tmp_path / "train/dog/bad.jpg", 100, 80))
    picture(40, 40).convert("L").save(tmp_path / "test/dog/grey.png")
    (tmp_path / "test/lynx").mkdir()
    found = {problem.kind: problem for problem in find_problems(tmp_path)}
    assert set(found) == {"unreadable", "empty class", "duplicate", "mixed modes"}
    assert found["unreadable"].file == str(bad)
    assert found["unreadable"].severity == "error"
    assert found["empty class"].file == str(tmp_path / "test/lynx")
    assert found["empty class"].severity == "error"
    assert str(tmp_path / "train/cat/1.png") in found["duplicate"].message
    assert str(tmp_path / "test/cat/leak.png") in found["duplicate"].message
    save_picture(tmp_path / "test/dog/large.png", 90, 90)
    assert "mixed sizes" in {problem.kind for problem in find_problems(tmp_path)}


def test_find_problems_in_streams_and_lists(tmp_path: Path) -> None:
    paths = [save_picture(tmp_path / f"{i}.png", seed=i) for i in range(3)]
    assert find_problems(paths) == []
    files = Stream(Files(paths, size=32), torch.tensor([0, 0, 2]), ("a", "b", "c"), "train")
    assert [(p.kind, p.message) for p in find_problems(files)] == [
        ("empty class", "class 'b' has no samples in 'train'")
    ]
    test = files.subset(torch.tensor([1])).unlabelled()
    (leak,) = [p for p in find_problems({"train": files, "test": test}) if p.kind == "duplicate"]
    assert leak.file == str(paths[1])
    images = torch.arange(4, dtype=torch.uint8).view(4, 1, 1, 1)
    held = {"train": Stream(Memory(images), None, ()), "val": Stream(Memory(images[2:3]), None, ())}
    (leak,) = find_problems(held)
    assert leak.file == "sample 0 of 'val'"
    assert "sample 2 of 'train'" in leak.message

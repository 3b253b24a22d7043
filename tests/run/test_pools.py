"""Where picks come from, a run's own samples or a pool on disk, and that a person can look at every one of them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from evenhand import cli
from evenhand.data.labels import Answer, write_answers
from evenhand.data.picks import read_facts
from evenhand.data.pool import read_pool
from evenhand.data.sources.formats import read
from evenhand.data.sources.rows import Columns
from evenhand.data.stream import Memory, Stream
from evenhand.errors import UserError
from evenhand.label.picks import read_picks, shown
from evenhand.label.serving import closing
from evenhand.run import pools
from evenhand.run.labelled import write_data
from evenhand.run.looked_at import files_to_look_at, folder_of
from evenhand.run.opening import open_run
from evenhand.run.pools import as_trained, cold_features
from evenhand.run.recipe import validate
from evenhand.run.selecting import select
from evenhand.run.training import train

NET = {"name": "classifier", "batch": 8, "net": {"name": "small-cnn", "width": 4}}
ADAPT = {"name": "vaada", "batch": 8, "net": {"name": "small-cnn", "width": 4}, "bottleneck": 8, "hidden": 8}


def trained(folder: Path, data: dict[str, Any], method: dict[str, Any] | None = None) -> Path:
    run = {"folder": str(folder), "steps": 2, "progress": False, "threads": 1}
    given = {"method": method or NET, "data": {"augment": [], **data}, "run": run}
    return train(validate(given, "tiny"))


def pictures(place: Path, count: int, seed: int = 0) -> np.ndarray:
    """Noise, so that no two are copies; returns them (N, H, W, 3)."""
    place.mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng(seed).integers(0, 256, (count, 16, 16, 3), np.uint8)
    for number, image in enumerate(images):
        Image.fromarray(image).save(place / f"{number}.png")
    return images


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train/<class>/*, test/<class>/*, unlabelled/* and a run on them."""
    root = tmp_path_factory.mktemp("own")
    for seed, place in enumerate(("train/ant", "train/bee", "test/ant", "test/bee", "unlabelled")):
        pictures(root / "photos" / place, 6, seed)
    trained(root / "run", {"set": str(root / "photos")})
    return root


def test_every_pick_can_be_looked_at(photos: Path, tmp_path: Path) -> None:
    """Own files, files that a table names, and arrays, which have no file of their own."""
    more = pictures(tmp_path / "elsewhere" / "deep", 5, seed=9)
    (tmp_path / "tables").mkdir()
    table, arrays = tmp_path / "tables" / "pool.csv", tmp_path / "pool.npz"
    table.write_text("path\n" + "".join(f"../elsewhere/deep/{n}.png\n" for n in range(5)))  # no labels: a pool has none
    np.savez(arrays, x_unlabelled=more)
    for number, pool in enumerate((None, table, arrays)):
        out = tmp_path / f"picks{number}.csv"
        select(photos / "run", pool, 3, out, by="entropy")
        found = read_picks(out)
        assert found.gone == found.outside == []
        assert all(shown(row, found.pool).startswith(b"\x89PNG") for row in found.rows)
        assert all("unlabelled" in row.name for row in found.rows) or pool is not None
    first = found.rows[0]
    assert first.file == tmp_path / "picks2-images" / "1.png"
    with Image.open(first.file) as image:
        assert (np.asarray(image) == more[int(first.name.rpartition("/")[2])]).all()


def test_arrays_of_a_built_in_set_can_be_looked_at(tmp_path: Path) -> None:
    data = {"set": "shapes", "target": "shapes-negative", "n_max": 4, "target_max": 20}
    run = trained(tmp_path / "run", data, ADAPT)
    select(run, None, 2, tmp_path / "picks.csv", by="entropy")
    found = read_picks(tmp_path / "picks.csv")
    assert all(shown(row, found.pool) for row in found.rows)


def test_what_a_page_cannot_show_is_said_in_one_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "pool.npz", x_unlabelled=np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32))
    select(None, tmp_path / "pool.npz", 2, tmp_path / "picks.csv")
    with pytest.raises(UserError, match=r"picks vectors, which no page can show: .* evenhand labels export"):
        read_picks(tmp_path / "picks.csv")


def test_what_is_tested_on_is_not_offered(photos: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """A target without a test of its own is tested on whole (Office-Home's protocol)."""
    for seed, place in enumerate(("a/ant", "a/bee", "b/ant", "b/bee")):
        pictures(tmp_path / "domains" / place, 8, seed)
    data = {"set": str(tmp_path / "domains"), "source": ["a"], "target": "b", "val_share": 0.0}
    with pytest.raises(UserError, match=r"16 samples of the run's target are its test, too: .*target_test_share"):
        select(trained(tmp_path / "run", data, ADAPT), None, 2, tmp_path / "picks.csv", by="entropy")
    held = trained(tmp_path / "held", {**data, "target_test_share": 0.5}, ADAPT)
    rows = select(held, None, 8, tmp_path / "picks.csv", by="entropy")
    assert len({row.name for row in rows}) == 8
    assert read_facts(tmp_path / "picks.csv")["part"] == "target"
    words = [
        "evenhand",
        "select",
        str(photos / "run"),
        "--budget",
        "2",
        "--by",
        "margin",
        "-o",
        str(tmp_path / "p.csv"),
    ]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    assert "p.csv: 2 of the 6 samples of the run's unlabelled, first " in capsys.readouterr().out


def test_tables_have_the_columns_that_the_run_was_told(tmp_path: Path) -> None:
    texts = "".join(f"{i},{'good' if i % 2 else 'bad'} film number {i},{'yes' if i % 2 else 'no'}\n" for i in range(12))
    (tmp_path / "train.csv").write_text("text,review,liked\n" + texts)
    data = {"set": str(tmp_path / "train.csv"), "text_column": "review", "label_column": "liked"}
    given: dict[str, Any] = {
        "method": {"name": "classifier", "batch": 8, "net": {"name": "text-mean", "width": 4}}, "data": data,
        "run": {"folder": str(tmp_path / "run"), "steps": 2, "progress": False, "threads": 1},
    }  # fmt: skip
    run = train(validate(given, "texts"))
    (tmp_path / "pool.csv").write_text("text,review\n7,a long film\n8,a short film\n9,no film\n")
    rows = select(run, tmp_path / "pool.csv", 2, tmp_path / "picks.csv", by="entropy")
    assert {row.text for row in rows} < {"a long film", "a short film", "no film"}


def test_labels_of_a_pool_train_as_the_page_says(photos: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Its closing line, typed as it stands."""
    pictures(tmp_path / "new", 5, seed=11)
    rows = select(photos / "run", tmp_path / "new", 3, tmp_path / "picks.csv", by="entropy")
    labels = tmp_path / "labels.csv"
    write_answers(labels, [Answer(row.name, "bee") for row in rows])
    told = closing(tmp_path / "picks.csv", labels).partition("train with them: ")[2]
    monkeypatch.setattr(sys, "argv", [*shlex.split(told), "--set", "run.threads=1"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    counts = {name: open_run(photos / name).model.facts.counts for name in ("run", "run-labelled")}
    assert counts == {"run": [6, 6], "run-labelled": [6, 9]}
    select(photos / "run-labelled", None, 1, tmp_path / "next.csv", by="entropy", labels=labels)  # which it has learnt


def test_a_first_model_is_trained_on_the_answers_of_a_cold_start(tmp_path: Path, monkeypatch: Any) -> None:
    """Its closing line up to the training: the whole pool, those with an answer labelled, without those of no class."""
    pictures(tmp_path / "new photos" / "deep", 6, seed=12)
    rows = select(None, tmp_path / "new photos", 4, tmp_path / "picks.csv", embed="pixels")
    labels, table = tmp_path / "labels.csv", tmp_path / "labelled.csv"
    said = ("bee", "ant", "#none", "")
    write_answers(labels, [Answer(row.name, label) for row, label in zip(rows, said, strict=True)])
    first, then = closing(tmp_path / "picks.csv", labels).partition("train a first model with them: ")[2].split(" && ")
    assert shlex.split(then) == ["evenhand", "train", str(table)]
    monkeypatch.setattr(sys, "argv", shlex.split(first))
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    data = read(table)
    known, unknown = data["train"], data["unlabelled"]
    assert {known.samples.name(row): known.classes[k] for row, k in enumerate(known.labels.tolist())} == {
        f"new photos/{rows[0].name}": "bee", f"new photos/{rows[1].name}": "ant",
    }  # fmt: skip
    assert len(unknown) == 3
    assert f"new photos/{rows[3].name}" in {unknown.samples.name(row) for row in range(3)}


def test_texts_and_their_answers_become_one_table(tmp_path: Path) -> None:
    (tmp_path / "pool.csv").write_text('text\n"a long film, a good one"\na short film\nno film\n')
    rows = select(None, tmp_path / "pool.csv", 2, tmp_path / "picks.csv", by="random")
    write_answers(tmp_path / "labels.csv", [Answer(row.name, "yes") for row in rows])
    assert write_data(tmp_path / "labels.csv", tmp_path / "pool.csv", tmp_path / "out.csv") == (2, 1)
    known = read(tmp_path / "out.csv")["train"].samples
    assert {known.text(0), known.text(1)} == {row.text for row in rows}


@pytest.mark.parametrize(
    ("answers", "out", "told"),
    [
        ([Answer("7.png", "bee")], "out.csv", "labels samples that .* does not have: 7.png"),
        ([Answer("0.png", "#none"), Answer("1.png", "")], "out.csv", "gives no sample of .* a class"),
        ([Answer("0.png", "bee")], "labels.csv", "exists already: give another name"),
        ([Answer("0.png", "bee")], "out.txt", "is no .csv: give another name"),
    ],
)
def test_answers_that_make_no_data_are_named(tmp_path: Path, answers: list[Answer], out: str, told: str) -> None:
    pictures(tmp_path / "new", 2)
    write_answers(tmp_path / "labels.csv", answers)
    with pytest.raises(UserError, match=told):
        write_data(tmp_path / "labels.csv", tmp_path / "new", tmp_path / out)


def test_vectors_take_their_labels_in_their_own_table(tmp_path: Path) -> None:
    np.savez(tmp_path / "pool.npz", x_unlabelled=np.zeros((3, 2), np.float32))
    write_answers(tmp_path / "labels.csv", [Answer("unlabelled/0", "bee")])
    with pytest.raises(UserError, match="neither files nor texts"):
        write_data(tmp_path / "labels.csv", tmp_path / "pool.npz", tmp_path / "out.csv")


def test_pictures_of_arrays_are_written_to_look_at(tmp_path: Path) -> None:
    for channels in (1, 3):
        images = torch.arange(2 * channels * 6, dtype=torch.uint8).view(2, channels, 2, 3)
        out = tmp_path / f"{channels}.csv"
        files = files_to_look_at(Memory(images), [1, 0], out)
        assert files == [str(tmp_path / f"{channels}-images" / name) for name in ("1.png", "2.png")]
        for file, row in zip(files, (1, 0), strict=True):
            with Image.open(file) as image:
                assert image.mode == ("L" if channels == 1 else "RGB")
                assert np.array_equal(np.asarray(image).reshape(2, 3, channels), images[row].permute(1, 2, 0))
    assert files_to_look_at(Memory(torch.zeros(3, 2)), [0, 2], tmp_path / "v.csv") == ["", ""]
    assert folder_of([*files, ""]) == tmp_path / "3-images"
    assert folder_of(["", ""]) is None


def test_a_cold_start_compares_small_grey_images_vectors_or_features(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = torch.arange(6.0).view(3, 2)
    assert torch.equal(cold_features(Stream(Memory(vectors), None, (), "pool"), "pixels"), vectors)
    pool = Stream(Memory(torch.randint(0, 256, (300, 3, 20, 24)).byte()), None, (), "pool")
    assert cold_features(pool, "pixels").shape == (300, 16 * 16)
    monkeypatch.setattr(pools, "features_of", lambda *given: given)
    assert cold_features(pool, "resnet18") == (pool, "resnet18", 224)


@pytest.mark.parametrize("grey", [False, True])
def test_a_pool_of_pictures_passes_the_frozen_network_of_the_run(
    grey: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = SimpleNamespace(embed="small-cnn:x", embed_size=40, grey=grey)
    facts = SimpleNamespace(kind="vectors", size=[9, 8], inputs=5)
    model: Any = SimpleNamespace(
        run=SimpleNamespace(recipe=SimpleNamespace(data=data), folder=tmp_path), facts=facts, classes=("a", "b")
    )
    told: list[Any] = []

    def features(stream: Stream, *how: Any) -> torch.Tensor:
        told.append((stream.fetch(torch.arange(2)).shape, *how))
        return torch.ones(2, 5)

    monkeypatch.setattr(pools, "features_of", features)
    monkeypatch.setattr(pools, "kept_backbone", lambda folder: folder / "backbone.pt")
    pictures = Memory(torch.zeros(2, 3, 12, 12, dtype=torch.uint8), ["x", "y"])
    found = as_trained(model, pictures)
    assert told == [((2, 1 if grey else 3, 8, 8), "small-cnn:x", 40, tmp_path / "backbone.pt")]
    assert [found.name(row) for row in range(2)] == ["x", "y"]
    vectors = Memory(torch.zeros(2, 5))
    assert as_trained(model, vectors) is vectors
    data.embed, facts.kind, facts.inputs = "", "images", 1
    assert as_trained(model, pictures).fetch(torch.arange(1)).shape == (1, 1, 8, 8)  # type: ignore[union-attr]
    with pytest.raises(UserError, match="the pool holds vectors, but the model was trained on images"):
        as_trained(model, vectors)


def test_a_pool_is_read_as_the_models_data_were(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(pools, "read", lambda pool, **how: told.append((pool, how)) or SimpleNamespace(source=None))
    pools.read_pool(Path("p"))
    pools.read_pool(Path("p"), labelled=True, skip_unreadable=True)
    assert told == [(Path("p"), {"labelled": on, "skip_unreadable": on}) for on in (False, True)]
    data = SimpleNamespace(label_column="l", text_column="t")
    for size, frame in (([9, 8], "pad"), ([], None)):
        told.clear()
        facts = SimpleNamespace(frame=frame, size=size, columns=("x",))
        run = SimpleNamespace(recipe=SimpleNamespace(data=data))
        pools.read_pool(Path("p"), SimpleNamespace(run=run, facts=facts, inputs=SimpleNamespace(mode="L")))  # type: ignore[arg-type]
        ((_, how),) = told
        assert (how["mode"], how["frame"], how.get("size")) == ("L", frame or "crop", 8 if size else None)
        assert how["columns"] == Columns("l", "t", ("x",))


def test_a_pool_of_arrays_needs_no_labels_unless_they_are_doubted(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    np.savez(tmp_path / "pool.npz", x=x)
    found = read_pool(tmp_path / "pool.npz")
    assert np.array_equal(found.source.fetch(torch.arange(6)), x)
    assert found.labels == ()
    with pytest.raises(UserError, match=r"'all' needs both images \(x\) and labels \(y\), has only x"):
        read_pool(tmp_path / "pool.npz", labelled=True)

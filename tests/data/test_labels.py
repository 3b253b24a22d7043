"""labels.csv moves target samples; picks.csv; what goes to other tools and comes back; the target's hold-out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenhand.data.domains import read_truth
from evenhand.data.exchange import export_picks, import_answers, label_config
from evenhand.data.labels import Answer, agreed, named, read_answers, write_answers
from evenhand.data.picks import COLUMNS, PickRow, read_facts, read_picks, write_picks
from evenhand.data.prepared import Data, prepare_data
from evenhand.data.settings import DataSettings
from evenhand.data.sources.formats import read
from evenhand.data.splits import stratified_holdout
from evenhand.errors import UserError
from evenhand.run.labelled import take_answers


def settings(**more: Any) -> DataSettings:
    return DataSettings(set="shapes", target="shapes-negative", n_max=6, augment=[], **more)


def labelled(tmp_path: Path, text: str, **more: Any) -> Data:
    (tmp_path / "labels.csv").write_text(text)
    return prepare_data(settings(labels=str(tmp_path / "labels.csv"), **more))


def test_labels_move_samples_from_the_target(tmp_path: Path) -> None:
    data = labelled(tmp_path, "name,label\ntrain/70,ring\ntrain/3,disc\ntrain/9,\ntrain/11,#none\n")
    known, target = data.streams["target_labelled"], data.streams["target"]
    assert named(known) == ["train/3", "train/70"]
    assert [known.classes[k] for k in known.labels.tolist()] == ["disc", "ring"]  # type: ignore[union-attr]
    assert len(target) == 600 - 3  # two bought, one that is none of these; the one skipped stays
    assert {"train/3", "train/70", "train/11"}.isdisjoint(named(target))
    assert "train/9" in named(target)
    assert target.labels is None
    whole = prepare_data(settings()).streams["target"]
    torch.testing.assert_close(known.fetch(torch.tensor([0])), whole.fetch(torch.tensor([3])))


MISTAKES = {
    "name,label\ntrain/3,disk\n": "label 'disk' of 'train/3' is no class; did you mean 'disc'?",
    "name,label\nnowhere,disc\n": "samples that the target does not have: nowhere; names there look like 'train/0'",
    "name,label\ntrain/3,disc\ntrain/3,ring\n": "two answers for 'train/3': 'disc' and 'ring'; keep one",
    "name,labell\ntrain/3,disc\n": "has no column 'label'; did you mean 'labell'?",
    "name,label\n,disc\n": "line 2 has no name",
    "name,label\ntrain/3,disc,extra,cell,more\n": "line 2 has more cells than the header",
    "name,label,labeller\ntrain/3,disc,ann\ntrain/3,ring,bob\n": "'disc' by ann and 'ring' by bob",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError) as error:
        labelled(tmp_path, text)
    assert MISTAKES[text] in str(error.value)
    assert "\n" not in str(error.value)


def test_answers_that_agree_count_once(tmp_path: Path) -> None:
    data = labelled(tmp_path, "name,label,labeller\ntrain/3,disc,ann\ntrain/3,disc,bob\ntrain/3,,eve\n")
    assert len(data.streams["target_labelled"]) == 1


def test_all_labelled_leaves_nothing_to_adapt_to(tmp_path: Path) -> None:
    rows = "".join(f"train/{i},disc\n" for i in range(600))
    with pytest.raises(UserError, match="labels all 600 samples"):
        labelled(tmp_path, f"name,label\n{rows}")


def test_labels_need_samples_that_they_are_about() -> None:
    for key, value in (("target_max", 5), ("target_test_share", 0.2)):
        with pytest.raises(UserError, match=f"data.{key} is about the domain to adapt to"):
            prepare_data(DataSettings(set="shapes", **{key: value}))
    with pytest.raises(UserError, match=r"samples that the data lack: .* data.pool, or .* data.target"):
        prepare_data(DataSettings(set="shapes", labels="x.csv"))


# the target's hold-out


@pytest.fixture
def own(tmp_path: Path) -> dict[str, Any]:
    """Two domains without a test split, in arrays."""
    chance = np.random.default_rng(0)
    for name in ("a", "b"):
        y = np.arange(60) % 3
        x = chance.normal(size=(60, 4)).astype(np.float32) + y[:, None]
        np.savez(tmp_path / f"{name}.npz", x=x, y=y, classes=["p", "q", "r"])
    return {"set": str(tmp_path / "a.npz"), "target": str(tmp_path / "b.npz")}


def test_a_share_of_the_target_is_held_out_as_test(own: dict[str, Any], tmp_path: Path) -> None:
    data = prepare_data(DataSettings(**own, target_test_share=0.2))
    test, target = data.streams["test"], data.streams["target"]
    assert (len(test), len(target)) == (12, 48)
    assert set(named(test)).isdisjoint(named(target))
    assert test.counts == [4, 4, 4]
    assert target.labels is None
    truth = read_truth(DataSettings(**own, target_test_share=0.2))
    assert named(truth) == named(target)
    assert truth.labels is not None
    # without it, what is labelled would be tested on
    write_answers(tmp_path / "l.csv", [Answer(named(target)[0], "p")])
    with pytest.raises(UserError, match="labels samples of the test"):
        prepare_data(DataSettings(**own, labels=str(tmp_path / "l.csv")))


def test_a_target_with_a_test_is_not_split_again() -> None:
    with pytest.raises(UserError, match=r"has a test split: leave out data.target_test_share"):
        prepare_data(settings(target_test_share=0.2))


def test_a_smaller_pool_is_drawn_without_labels() -> None:
    small, other = (prepare_data(settings(target_max=50, split_seed=seed)).streams["target"] for seed in (0, 1))
    assert len(small) == len(other) == 50
    assert named(small) != named(other)
    assert named(small) == named(prepare_data(settings(target_max=50)).streams["target"])
    assert named(read_truth(settings(target_max=50))) == named(small)


@given(st.lists(st.integers(0, 4), min_size=5, max_size=80), st.floats(0.05, 0.6), st.integers(0, 3))
def test_stratified_holdout_has_every_class_in_proportion(labels: list[int], share: float, seed: int) -> None:
    rest, held = stratified_holdout(labels, share, seed, 5)
    assert sorted([*rest.tolist(), *held.tolist()]) == list(range(len(labels)))
    total = int(np.ceil(share * len(labels) - 1e-9))
    assert len(held) == total
    y = torch.tensor(labels)
    for k in range(5):
        exact = total * int((y == k).sum()) / len(labels)
        assert abs(int((y[held] == k).sum()) - exact) < 1


def test_a_whole_share_is_not_rounded_up() -> None:
    """0.07 * 100 is a little more than 7 in floating point."""
    assert len(stratified_holdout([0, 1] * 50, 0.07, 0, 2)[1]) == 7


# picks and other tools


ROWS = [
    PickRow("x/a, b.png", 1, "", "", "", 0.5, 0.25, 0.125, (("cat", 0.7), ("dog", 0.2), ("fox", 0.1))),
    PickRow('q"uote', 2, text="two\nlines", label="dog"),
]


def test_picks_come_back_as_they_were(tmp_path: Path) -> None:
    write_picks(tmp_path / "picks.csv", ROWS, {"classes": ["cat", "dog", "fox"]})
    assert read_picks(tmp_path / "picks.csv") == ROWS
    assert read_facts(tmp_path / "picks.csv") == {"classes": ["cat", "dog", "fox"]}
    assert (tmp_path / "picks.csv").read_text().splitlines()[0] == ",".join(COLUMNS)
    assert COLUMNS == (
        "name", "rank", "path", "text", "label", "uncertainty", "diversity", "representativeness", "guess1",
        "confidence1", "guess2", "confidence2", "guess3", "confidence3",
    )  # fmt: skip


def test_label_studio_and_back(tmp_path: Path) -> None:
    export_picks(ROWS, tmp_path / "tasks.json", classes=["cat", "dog"], prefix="/data/local-files/?d=pool/")
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    assert tasks[0]["data"]["image"] == "/data/local-files/?d=pool/x/a, b.png"
    assert tasks[0]["predictions"][0]["result"][0]["value"] == {"choices": ["cat"]}
    assert tasks[1]["data"]["text"] == "two\nlines"
    for task, choice in zip(tasks, (["cat"], []), strict=True):
        result = [{"type": "choices", "value": {"choices": choice}}] if choice else []
        task["annotations"] = [{"result": result, "completed_by": {"email": "ann@x"}, "updated_at": "2026-11-16"}]
    tasks[1]["annotations"][0]["was_cancelled"] = True
    (tmp_path / "back.json").write_text(json.dumps(tasks))
    said = import_answers(tmp_path / "back.json")
    assert said == [
        Answer("x/a, b.png", "cat", "ann@x", "2026-11-16"), Answer('q"uote', "", "ann@x", "2026-11-16")
    ]  # fmt: skip
    (tmp_path / "min.json").write_text(json.dumps([{"name": "n", "label": "dog", "annotator": 3, "image": "x"}]))
    assert import_answers(tmp_path / "min.json") == [Answer("n", "dog", "3", "")]
    del tasks[0]["annotations"][0]["updated_at"]
    tasks[0]["annotations"][0]["created_at"] = "2026-11-15"
    (tmp_path / "made.json").write_text(json.dumps([tasks[0], {"name": "n", "label": "dog", "created_at": "2026"}]))
    assert [answer.time for answer in import_answers(tmp_path / "made.json")] == ["2026-11-15", "2026"]
    assert '<Choice value="#none"/>' in label_config(["a & b"])
    assert "a &amp; b" in label_config(["a & b"])


def test_a_table_to_fill_in_and_back(tmp_path: Path) -> None:
    export_picks(ROWS, tmp_path / "out.csv")
    text = (tmp_path / "out.csv").read_text().replace('"x/a, b.png",,', '"x/a, b.png",,cat')
    (tmp_path / "out.csv").write_text(text)
    assert import_answers(tmp_path / "out.csv")[0] == Answer("x/a, b.png", "cat")
    with pytest.raises(UserError, match=r"out.csv exists already, perhaps filled in: .* labels import"):
        export_picks(ROWS, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == text


WRONG = {
    "x.json": ('{"a": 1}', "is no list of tasks"),
    "y.json": ("[1]", "task 0 is no task"),
    "z.json": ('[{"data": {}}]', "has no data.name"),
    "v.json": ("[", "is not JSON"),
    "u.csv": ("pth,label\n", "has no column 'name' (or 'path'); it has pth, label"),
    "w.txt": ("", "give Label Studio's .json, or a .csv"),
}


@pytest.mark.parametrize("name", WRONG)
def test_answers_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(WRONG[name][0])
    with pytest.raises(UserError) as error:
        import_answers(tmp_path / name)
    assert WRONG[name][1] in str(error.value)


def test_several_classes_of_one_sample_are_refused(tmp_path: Path) -> None:
    task = {"data": {"name": "n"}, "annotations": [{"result": [{"value": {"choices": ["a", "b"]}}]}]}
    (tmp_path / "t.json").write_text(json.dumps([task]))
    with pytest.raises(UserError, match="has several classes, a, b"):
        import_answers(tmp_path / "t.json")


def test_picks_whose_files_are_gone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="files of 1 picks are gone: lost"):
        export_picks([PickRow("lost", 1, path=str(tmp_path / "lost.png"))], tmp_path / "t.json")
    assert not (tmp_path / "t.json").exists()


def test_answers_are_added_and_nothing_is_lost(tmp_path: Path) -> None:
    out, more = tmp_path / "labels.csv", tmp_path / "more.csv"
    write_answers(out, [Answer("a", "cat", "ann", "t")])
    more.write_text("name,label\nb,dog\nb,dog\n")
    assert take_answers(more, out) == (2, 1)
    assert take_answers(more, out) == (2, 0)
    assert [answer.name for answer in read_answers(out)] == ["a", "b"]
    more.write_text("name,label\na,dog\n")
    with pytest.raises(UserError, match=r"more\.csv' says 'dog' of 'a', and '.*labels\.csv' says 'cat'"):
        take_answers(more, out)
    assert agreed(read_answers(out), out) == {"a": "cat", "b": "dog"}
    write_picks(tmp_path / "picks.csv", ROWS[:1], {"classes": ["cat", "dog"]})
    more.write_text("name,label\nc,dog\n")
    with pytest.raises(UserError, match="does not have: c"):
        take_answers(more, out, tmp_path / "picks.csv")
    more.write_text('name,label\n"x/a, b.png",dgo\n')
    with pytest.raises(UserError, match=r"label 'dgo' of 'x/a, b.png' is no class"):
        take_answers(more, out, tmp_path / "picks.csv")


def test_the_authors_npz_is_read(tmp_path: Path) -> None:
    """Keys data (floats in 0..1) and label, as the released Office files have them."""
    images = np.linspace(0, 1, 4 * 8 * 8 * 3).reshape(4, 8, 8, 3)
    np.savez(tmp_path / "webcam31.npz", data=images, label=np.array([0, 1, 1, 0]))
    stream = read(tmp_path / "webcam31.npz")["all"]
    got = stream.fetch(torch.arange(4))
    assert got.dtype == torch.uint8
    assert torch.equal(got, torch.from_numpy(np.rint(255 * images).astype(np.uint8)).permute(0, 3, 1, 2))
    assert stream.labels is not None
    assert stream.labels.tolist() == [0, 1, 1, 0]
    np.savez(tmp_path / "bad.npz", data=2 * images, label=np.array([0, 1, 1, 0]))
    with pytest.raises(UserError, match=r"must lie in 0\.\.1"):
        read(tmp_path / "bad.npz")

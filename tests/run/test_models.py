"""A run's folder is a model: it opens anywhere, alone; runs that others need are trained once and shared."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from evenhand import locks
from evenhand.data.sources import files
from evenhand.errors import UserError
from evenhand.methods.recognise import second_stage
from evenhand.methods.recognise.classifier import LongTailClassifier
from evenhand.run import checkpoint, fit, open_run, training
from evenhand.run import folder as run_folder
from evenhand.run.measuring import measure
from evenhand.run.opening import build_method, read_data
from evenhand.run.recipe import Recipe, load_recipe, validate
from evenhand.run.training import train
from helpers import tree

Tree = dict[str, Any]
NAMES = [f"{split}/{k}/{i}.png" for split in ("train", "test") for k in ("ant", "bee", "cat") for i in range(6)]


def classifier(**method: Any) -> Tree:
    return {"name": "classifier", "batch": 8, "net": {"name": "small-cnn", "width": 2}, **method}


def recipe(folder: Path, method: Tree, needs: Tree | None = None, data: Tree | None = None, **run: Any) -> Any:
    tables = {
        "data": {"set": "shapes", "n_max": 8, "imbalance": 4, "test_per_class": 2, **(data or {})},
        "method": method,
        "needs": needs or {},
        "run": {"folder": str(folder), "steps": 2, "progress": False, **run},
    }
    return validate(tables, "test")


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders of all trainings, in order."""
    done: list[str] = []
    fit = training.fit

    def noted(method: Any, streams: Any, run: Any, **more: Any) -> Path:
        done.append(run.folder)
        return fit(method, streams, run, **more)

    monkeypatch.setattr(training, "fit", noted)
    return done


# opening


@pytest.mark.parametrize("loss", ["ce", "ldam"])
def test_a_run_opens_where_its_data_are_gone(tmp_path: Path, loss: str) -> None:
    """Moved to another place, the training folder deleted: the same predictions, scaled as in training."""
    photos = tree(tmp_path / "photos", *NAMES)
    run = recipe(tmp_path / "run", classifier(loss=loss), data={"set": str(photos), "n_max": None, "imbalance": 1,
                                                                "test_per_class": None})  # fmt: skip
    folder = train(run)
    before = open_run(folder)
    images = before.data().streams["test"].fetch(torch.arange(5))
    expected = before.method.predict(images)
    shutil.rmtree(photos)
    moved = shutil.move(folder, tmp_path / "elsewhere")
    opened = open_run(moved)
    assert torch.equal(opened.method.predict(images), expected)
    assert opened.method.data.classes == ("ant", "bee", "cat")
    assert opened.method.data.streams == {}
    if loss == "ldam":
        assert expected.abs().max() > 1  # cosines would not be
    with pytest.raises(UserError, match="does not exist"):
        opened.data()


def test_a_run_on_texts_brings_its_words(tmp_path: Path) -> None:
    net = {"name": "text-mean", "width": 4}
    text = {"set": "phrases", "imbalance": 1, "n_max": None, "test_per_class": None, "text": {"length": 8}}
    folder = train(recipe(tmp_path / "run", classifier(net=net), data=text))
    opened = open_run(folder)
    words = opened.method.data.vocabulary
    assert words is not None
    assert opened.method.predict(words.encode(["the lynx and the otter"])).shape == (1, 5)
    assert "lynx" in opened.model.facts.words


def test_weights_to_start_from_are_not_needed_again(tmp_path: Path) -> None:
    first = train(recipe(tmp_path / "first", classifier()))
    torch.save(open_run(first).method.network().state_dict(), tmp_path / "start.pt")
    net = {"name": "small-cnn", "width": 2, "weights": str(tmp_path / "start.pt")}
    folder = train(recipe(tmp_path / "run", classifier(net=net)))
    (tmp_path / "start.pt").unlink()
    assert open_run(folder).step == 2


# needs


def second(**more: Any) -> Tree:
    return {"name": "second-stage", "rule": "crt", "batch": 8, **more}


@pytest.fixture
def first_file(tmp_path: Path) -> str:
    """A recipe of its own data and views, which a dependent run names."""
    file = tmp_path / "first.toml"
    file.write_text(
        'about = "a first stage"\n[data]\nset = "fashion-mnist"\naugment = ["flip"]\n'
        "normalise = [[0.5, 0.5, 0.5], [0.2, 0.2, 0.2]]\n"
        '[method]\nname = "classifier"\nbatch = 8\nnet = { name = "small-cnn", width = 2 }\n[run]\nsteps = 3\n'
    )
    return str(file)


def test_variants_and_later_runs_share_what_they_need(tmp_path: Path, trainings: list[str], first_file: str) -> None:
    needs = {"first": first_file}
    for name, method in (("a", second()), ("b", second(rule="lws")), ("c", second(rule="tau-norm"))):
        train(recipe(tmp_path / name, method, needs))
    shared = [folder for folder in trainings if "needs" in folder]
    assert len(shared) == 1
    assert len(trainings) == 4
    train(recipe(tmp_path / "d", second(), needs, seed=1))
    train(recipe(tmp_path / "e", second(), needs, data={"imbalance": 2}))
    assert len({folder for folder in trainings if "needs" in folder}) == 3


def test_a_needed_run_has_this_runs_samples_and_its_own_views(tmp_path: Path, first_file: str) -> None:
    run = open_run(train(recipe(tmp_path / "run", second(), {"first": first_file})))
    (kept,) = [path for path in (tmp_path / "needs").iterdir() if path.is_dir()]
    first = load_recipe(kept / "recipe.toml")
    assert (first.data.set, first.data.n_max, first.data.augment) == ("shapes", 8, ["flip"])
    assert first.run.steps == 3
    scale = pytest.approx([1 / (255 * 0.2)] * 3)
    assert run.method.data.eval_view.scale.flatten().tolist() == scale
    assert run.method.data.train_view.scale.flatten().tolist() == scale
    assert len(run.method.data.train_view.steps) == 1  # crop and flip: this run's own augmentation


def test_what_a_need_sets_wins(tmp_path: Path, first_file: str) -> None:
    need = {"recipe": first_file, "set": {"data.augment": [], "run.seed": 7, "run": {"steps": 1}}}
    train(recipe(tmp_path / "run", second(), {"first": need}))
    first = load_recipe(tmp_path / "run" / "needs" / "first" / "recipe.toml")
    assert (first.data.augment, first.run.seed, first.run.steps) == ([], 7, 1)


def test_a_finished_run_opens_without_its_needs(tmp_path: Path, first_file: str) -> None:
    folder = train(recipe(tmp_path / "run", second(rule="lws"), {"first": first_file}))
    opened = open_run(folder)
    images = opened.data().streams["test"].fetch(torch.arange(4))
    expected = opened.method.predict(images)
    shutil.rmtree(tmp_path / "needs")
    Path(first_file).unlink()
    assert torch.equal(open_run(folder).method.predict(images), expected)
    state = checkpoint.load(folder / "needs" / "first" / "last.pt")["method"]
    assert state["optimizer"] is None  # a model, not a training


def test_a_paused_run_goes_on_with_the_needs_it_began_with(
    tmp_path: Path, first_file: str, trainings: list[str]
) -> None:
    train(recipe(tmp_path / "run", second(), {"first": first_file}, stop_after=1))
    shutil.rmtree(tmp_path / "needs")
    train(recipe(tmp_path / "run", second(), {"first": first_file}, resume=True))
    assert len([folder for folder in trainings if "needs" in folder]) == 1
    assert open_run(tmp_path / "run").step == 2


def test_a_run_of_other_counts_is_no_first_stage(tmp_path: Path) -> None:
    first = train(recipe(tmp_path / "first", classifier(), data={"imbalance": 2}))
    with pytest.raises(UserError, match="other class counts"):
        train(recipe(tmp_path / "run", second(), {"first": str(first)}))
    assert second_stage.SecondStage.task.name == "classify"


# one training in a folder


@contextmanager
def held_elsewhere(folder: Path) -> Iterator[None]:
    """By another thread, as by another process; who holds a lock may take it again."""
    taken, over = threading.Event(), threading.Event()

    def hold() -> None:
        with locks.held(folder, wait=False):
            taken.set()
            over.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait(30)
    try:
        yield
    finally:
        over.set()
        thread.join()


def fit_alone(asked: Recipe) -> None:
    data = read_data(asked)
    fit(build_method(asked, data, torch.device("cpu"), {}), data.streams, asked.run)


@pytest.mark.parametrize("begin", [train, fit_alone])
def test_two_trainings_in_one_folder_are_refused(tmp_path: Path, begin: Callable[[Recipe], object]) -> None:
    asked = recipe(tmp_path / "run", classifier())
    with (
        held_elsewhere(tmp_path / "run"),
        pytest.raises(UserError, match=r"is in use by process \d+: wait for it, or choose another run\.folder"),
    ):
        begin(asked)
    assert not (tmp_path / "run" / "last.pt").exists()
    begin(asked)
    (tmp_path / "link").symlink_to("run")
    with (
        held_elsewhere(tmp_path / "run"),
        pytest.raises(UserError, match="link is in use"),
        locks.held(tmp_path / "link", wait=False),
    ):
        pytest.fail("one folder had two holders")
    with locks.held(tmp_path / "run", wait=False):  # given back
        assert (tmp_path / "run" / "last.pt").exists()


def test_a_lock_taken_twice_is_kept_until_the_first_ends(tmp_path: Path) -> None:
    lock = tmp_path / "x"
    with locks.held(lock, wait=False):
        assert _refused(lock)
        with locks.held(lock, wait=False, again=True):
            pass
        assert _refused(lock)
    assert not _refused(lock)


def _refused(lock: Path) -> bool:
    try:
        with locks.held(lock, wait=False):
            return False
    except UserError:
        return True


def test_a_lock_is_waited_for_and_ends_with_its_holder(tmp_path: Path) -> None:
    lock = tmp_path / "x"
    code = (
        "from evenhand import locks; from pathlib import Path; import os\n"
        f"with locks.held(Path({str(lock)!r}), wait=False): os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    order: list[str] = []

    def later() -> None:
        with locks.held(lock, wait=True):
            order.append("second")

    with locks.held(lock, wait=False):
        thread = threading.Thread(target=later)
        thread.start()
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


# formats and versions


def test_a_run_of_an_older_format_says_what_to_do(tmp_path: Path) -> None:
    folder = train(recipe(tmp_path / "run", classifier()))
    (folder / "model.json").unlink()
    with pytest.raises(UserError, match=r"written by an older evenhand \(format 1\): train it again"):
        open_run(folder)


@pytest.mark.parametrize("file", ["model.json", "last.pt"])
def test_a_run_of_a_newer_format_says_what_to_do(tmp_path: Path, file: str) -> None:
    folder = train(recipe(tmp_path / "run", classifier()))
    if file == "last.pt":
        content = torch.load(folder / file, weights_only=True)
        torch.save({**content, "format": 99}, folder / file)
    else:
        (folder / file).write_text(json.dumps({**json.loads((folder / file).read_text()), "format": 99}))
    with pytest.raises(UserError, match=r"is of format 99, newer than this evenhand reads .*upgrade"):
        open_run(folder)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 2, "facts": 3}', '{"format": "x"}'])
def test_a_damaged_description_is_one_line(tmp_path: Path, text: str) -> None:
    folder = train(recipe(tmp_path / "run", classifier()))
    (folder / "model.json").write_text(text)
    with pytest.raises(UserError) as caught:
        open_run(folder)
    assert len(str(caught.value).splitlines()) == 1


def test_another_default_of_ours_locks_no_old_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A paused run goes on by its own recipe.toml although a default has changed and an option was added since."""
    from evenhand.methods.recognise.classifier import ClassifierSettings, LongTailClassifier

    folder = train(recipe(tmp_path / "run", classifier(), steps=4, stop_after=2))

    class Newer(ClassifierSettings):
        beta: float = 0.5
        invented: int = 3

    monkeypatch.setattr(LongTailClassifier, "table", Newer)
    again = load_recipe(folder, ["run.resume=true"])
    assert (again.method.beta, again.method.invented) == (0.9999, 3)
    train(again)
    assert open_run(folder).step == 4
    with pytest.raises(UserError, match=r"belongs to another recipe, which differs in method\.beta"):
        train(recipe(tmp_path / "run", classifier(), steps=4, resume=True))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("labels", "'labelled' had 18 samples"), ("pixels", "'labelled' had 18 samples"),
        ("fewer", "'labelled' had 18 samples, has 17"), ("test", "'test' had 18 samples, has 18"),
        ("val gone", "'val' had 3 samples, has 0"), ("val labels", "'val' had 3 samples, has 3"),
    ],
)  # fmt: skip
def test_data_that_changed_during_a_pause_are_noticed(tmp_path: Path, change: str, said: str) -> None:
    photos = tree(tmp_path / "photos", *NAMES, "val/ant/0.png", "val/bee/1.png", "val/cat/2.png")
    settings = {"set": str(photos), "n_max": None, "imbalance": 1, "test_per_class": None}
    train(recipe(tmp_path / "run", classifier(), data=settings, steps=4, stop_after=2))
    one, other = photos / "train/ant/0.png", photos / "train/bee/0.png"
    if change == "labels":
        (tmp_path / "x.png").write_bytes(one.read_bytes())
        one.write_bytes(other.read_bytes())
        other.write_bytes((tmp_path / "x.png").read_bytes())
    elif change == "pixels":
        one.write_bytes((photos / "test/cat/5.png").read_bytes())
    elif change == "test":
        (photos / "test/cat/5.png").write_bytes(one.read_bytes())
    elif change == "val gone":
        shutil.rmtree(photos / "val")
    elif change == "val labels":
        (photos / "val/ant/0.png").rename(tmp_path / "x.png")
        (photos / "val/bee/1.png").rename(photos / "val/ant/0.png")
        (tmp_path / "x.png").rename(photos / "val/bee/1.png")
    else:
        one.unlink()
    with pytest.raises(UserError, match=rf"the data have changed since .*{said}"):
        train(recipe(tmp_path / "run", classifier(), data=settings, steps=4, resume=True))


@pytest.mark.parametrize("probed", [2, 15])  # files of 18, of which 12 train
def test_files_of_other_dates_beyond_those_compared_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probed: int
) -> None:
    for module in (files, run_folder):
        monkeypatch.setattr(module, "PROBED", probed)
    photos = tree(tmp_path / "photos", *NAMES)
    settings = {"set": str(photos), "size": 72, "n_max": None, "imbalance": 1, "test_per_class": None}  # not in memory
    settings["val_per_class"] = 2
    train(recipe(tmp_path / "run", classifier(), data=settings, steps=6, stop_after=2))
    went = {"data": settings, "steps": 6, "resume": True}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*other dates")
        train(recipe(tmp_path / "run", classifier(), **went, stop_after=2))
    name = NAMES[1]
    os.utime(photos / name, ns=(5, 5))
    with pytest.warns(UserWarning, match=rf"'labelled' have other dates .*; of 18 the contents of at most {probed} "):
        train(recipe(tmp_path / "run", classifier(), **went))


def test_a_run_whose_last_checkpoint_is_gone_goes_on_from_the_latest_other(tmp_path: Path) -> None:
    run = {"steps": 4, "keep_every": 0.2, "eval_every": 1}
    whole = checkpoint.load(train(recipe(tmp_path / "whole", classifier(), **run)) / "last.pt")
    folder = train(recipe(tmp_path / "run", classifier(), **run, stop_after=3))
    (folder / "last.pt").unlink()
    damaged, *_, latest = sorted(folder.glob("epoch-*.pt"))
    damaged.write_bytes(b"junk")
    with pytest.warns(UserWarning, match=rf"last\.pt is gone: the run goes on from {latest.name} beside it \(step 3\)"):
        train(recipe(folder, classifier(), **run, resume=True))
    found = checkpoint.load(folder / "last.pt")
    for x, y in zip(checkpoint._tensors(found), checkpoint._tensors(whole), strict=True):
        assert torch.equal(x, y)


def test_a_run_of_which_the_best_checkpoint_alone_is_there_begins_anew_with_a_word(tmp_path: Path) -> None:
    run: Tree = {"data": {"val_per_class": 2}, "steps": 4, "select": "val:accuracy"}
    folder = train(recipe(tmp_path / "run", classifier(), **run, stop_after=3, eval_every=0.1))
    (folder / "last.pt").unlink()
    assert [file.name for file in folder.glob("*.pt")] == ["best.pt"]
    with pytest.warns(UserWarning, match=r"last\.pt is gone: training begins anew"):
        train(recipe(folder, classifier(), **run, resume=True))


def test_a_run_without_any_checkpoint_begins_without_a_word(tmp_path: Path) -> None:
    folder = train(recipe(tmp_path / "run", classifier(), steps=4, stop_after=3))
    (folder / "last.pt").unlink()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*last")
        train(recipe(folder, classifier(), steps=4, resume=True))


@pytest.mark.parametrize(
    ("key", "value"),
    [("size", []), ("size", [32, 10**12]), ("size", [0, 32]), ("mean", []), ("std", [0.0] * 3), ("mean", [1.0] * 5),
     ("std", [float("nan")] * 3), ("counts", [1])],
)  # fmt: skip
def test_facts_that_no_images_have_are_one_line(tmp_path: Path, key: str, value: list[float]) -> None:
    folder = train(recipe(tmp_path / "run", classifier()))
    told = json.loads((folder / "model.json").read_text())
    told["facts"][key] = value
    (folder / "model.json").write_text(json.dumps(told))
    with pytest.raises(UserError, match=r"model\.json cannot be read \(facts: "):
        open_run(folder)


@pytest.mark.parametrize("content", ["", "junk", "[1]", "{}", '{"labelled": 3}', '{"labelled": {"digest": "x"}}'])
def test_damaged_words_on_the_data_of_a_paused_run_are_one_line(tmp_path: Path, content: str) -> None:
    folder = train(recipe(tmp_path / "run", classifier(), steps=4, stop_after=2))
    if content:
        (folder / "streams.json").write_text(content)
    else:
        (folder / "streams.json").unlink()
    with pytest.raises(UserError, match=r"streams\.json.*restore it") as caught:
        train(recipe(tmp_path / "run", classifier(), steps=4, resume=True))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("content", ["junk", "[1]", "3"])
def test_a_damaged_measurement_is_replaced_by_a_new_one(tmp_path: Path, content: str) -> None:
    folder = train(recipe(tmp_path / "run", classifier()))
    before = json.loads((folder / "measure.json").read_text())
    (folder / "measure.json").write_text(content)
    measure(folder)
    assert json.loads((folder / "measure.json").read_text()).keys() == before.keys()


def test_a_network_beyond_all_memory_is_one_line(tmp_path: Path) -> None:
    for width in (10**9, 10**17):
        wide = {**classifier(), "net": {"name": "small-cnn", "width": width}}
        with pytest.raises(UserError, match=r"\[method\]: does not fit into memory"):
            train(recipe(tmp_path / "run", wide))


@pytest.mark.parametrize("how", [lambda: torch.empty(2**60), lambda: torch.empty(2**45), lambda: bytearray(2**60)])
def test_a_training_beyond_all_memory_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Any) -> None:
    monkeypatch.setattr(LongTailClassifier, "update", lambda *_: how())
    with pytest.raises(UserError, match=r"^training: does not fit into memory; lower the largest of its sizes$"):
        train(recipe(tmp_path / "run", classifier()))


def test_a_number_beyond_half_precision_is_no_matter_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half = torch.zeros(2, dtype=torch.half)
    monkeypatch.setattr(LongTailClassifier, "update", lambda *_: half.masked_fill(half == 0, -1e9))
    with pytest.raises(RuntimeError, match="without overflow"):
        train(recipe(tmp_path / "run", classifier()))


def test_a_class_added_during_a_pause_is_one_line(tmp_path: Path) -> None:
    photos = tree(tmp_path / "photos", *NAMES)
    settings = {"set": str(photos), "n_max": None, "imbalance": 1, "test_per_class": None}
    train(recipe(tmp_path / "run", classifier(), data=settings, steps=4, stop_after=2))
    tree(photos, "train/dog/1.png", "test/dog/1.png")
    with pytest.raises(UserError, match="the data have changed since the run began"):
        train(recipe(tmp_path / "run", classifier(), data=settings, steps=4, resume=True))

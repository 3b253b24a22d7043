"""Whole runs of a real method: exact resumption, kills, and the way from a folder back to its method."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import evenhand
from evenhand.data.stream import Memory, Stream
from evenhand.errors import UserError
from evenhand.run import checkpoint, fit, open_run, train
from evenhand.run.measuring import measure
from evenhand.run.opening import read_data
from evenhand.run.recipe import Recipe, load_recipe
from evenhand.run.training import _tell_absent, is_complete

Make = Callable[..., Recipe]

CONFIGURATIONS = {
    "sgd-ema-mixup": ("method.mixup=0.3", "method.optim.ema=0.9", "method.sampling=square-root"),
    "sam-ldam-drw": ("method.loss=ldam", "method.weighting=drw", "method.optim.name=sam", "method.optim.rho=0.1"),
    "pgd": ("method.optim.name=pgd", "method.optim.sigma=0.01"),
    "lpf-sgd-ib": ("method.optim.name=lpf-sgd", "method.loss=ib"),
    "adamw-bfloat16": ("method.optim.name=adamw", "method.optim.precision=bfloat16", "method.optim.lr=0.001"),
}


def leaves(state: Any, at: str = "") -> dict[str, Any]:
    """Every tensor and plain value of a nested state by its path."""
    if isinstance(state, dict):
        inside = {str(key): value for key, value in state.items()}
    elif isinstance(state, (list, tuple)):
        inside = {str(key): value for key, value in enumerate(state)}
    else:
        return {at: state}
    return {path: leaf for key, value in inside.items() for path, leaf in leaves(value, f"{at}/{key}").items()}


def differing(a: Path, b: Path) -> list[str]:
    """Paths at which two checkpoints differ in a bit."""
    one, other = leaves(checkpoint.load(a)), leaves(checkpoint.load(b))
    assert one.keys() == other.keys()
    return [p for p in one if not (torch.equal(one[p], other[p]) if isinstance(one[p], Tensor) else one[p] == other[p])]


def rows(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "images_per_second"} for row in found if row["kind"] != "event"]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_resumed_training_is_bit_for_bit(tiny: Make, build: Any, name: str) -> None:
    def go(folder: str, *more: str) -> Path:
        recipe = tiny(*CONFIGURATIONS[name], "run.select=val:mean_recall", *more, folder=folder)
        method, data = build(recipe)
        return fit(method, data.streams, recipe.run, digest=recipe.digest())

    whole = go("whole")
    for stop in (1, 2, 3):  # within, at the end of, and in the middle of an epoch
        parts = go("parts", "run.resume=true", f"run.stop_after={stop}")
    assert checkpoint.load(parts / "last.pt")["step"] == 6
    assert differing(whole / "last.pt", parts / "last.pt") == []
    assert differing(whole / "best.pt", parts / "best.pt") == []
    assert rows(whole) == rows(parts)


def test_the_weights_do_change(tmp_path: Path, tiny: Make, build: Any) -> None:
    for seed in (0, 1):
        recipe = tiny(f"run.seed={seed}", folder=str(seed))
        method, data = build(recipe)
        fit(method, data.streams, recipe.run)
    assert "/method/net/fc.weight" in differing(tmp_path / "0" / "last.pt", tmp_path / "1" / "last.pt")


def test_an_absurd_learning_rate_is_one_line_and_leaves_a_finite_checkpoint(
    tmp_path: Path, tiny: Make, build: Any
) -> None:
    recipe = tiny("method.optim.lr=1e30", "method.optim.schedule=constant", "run.epochs=20", "run.eval_every=0.5")
    method, data = build(recipe)
    with pytest.raises(UserError, match="diverged") as caught:
        fit(method, data.streams, recipe.run)
    assert len(str(caught.value).splitlines()) == 1
    for file in tmp_path.glob("run/*.pt"):
        assert checkpoint.is_finite(checkpoint.load(file))


Killed = tuple[Path, Path, list[dict[str, Any]]]

KILLS = '''
"""Train in children that die by SIGKILL at the worst moments and at arbitrary ones, until the run is done."""
import io, json, os, random, signal, sys, time
from pathlib import Path
import torch
from evenhand.run import checkpoint, load_recipe, train
from evenhand.run.log import Log

file, folder = sys.argv[1], Path(sys.argv[2])
train(load_recipe(file, [f"run.folder={json.dumps(str(folder / 'whole'))}"]))
recipe = load_recipe(file, [f"run.folder={json.dumps(str(folder / 'killed'))}", "run.resume=true"])
chance = random.Random(0)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def nth(count, act, then):
    """Like ``act``, but ``then`` instead at the count-th call."""
    calls = iter(range(count))
    return lambda *a, **k: act(*a, **k) if next(calls, None) is not None else then(*a, **k)


def half_checkpoint(content, path):
    whole = io.BytesIO()
    save(content, whole)
    Path(path).write_bytes(whole.getvalue()[: len(whole.getvalue()) // 2])
    die()


def half_line(log, kind, step, epoch, values):
    with log.path.open("a") as out:
        out.write('{"kind": "' + kind + '", "step": ' + str(step) + ', "epo')
    die()


def while_the_log_is_rewritten():
    is_log = lambda path: Path(path).name == "log.jsonl"
    Path.write_text = lambda path, text: (path.open("w"), die()) if is_log(path) else write(path, text)
    os.replace = lambda a, b: die() if is_log(b) else replace(a, b)


def at_any_time():
    Log.__enter__ = lambda log: (signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.001, 0.2)), enter(log))[1]


save, replace, row, enter, write = torch.save, os.replace, Log.row, Log.__enter__, Path.write_text
moments = {
    "describing": lambda: setattr(os, "replace", nth(1, replace, lambda a, b: die())),
    "half a checkpoint": lambda: setattr(torch, "save", nth(3, save, half_checkpoint)),
    "before its rename": lambda: setattr(os, "replace", nth(4, replace, lambda a, b: die())),
    "after its rename": lambda: setattr(os, "replace", nth(2, replace, lambda a, b: (replace(a, b), die()))),
    "half a line": lambda: setattr(Log, "row", nth(3, row, half_line)),
    "while the log is rewritten": while_the_log_is_rewritten,
    **{f"time {n}": at_any_time for n in range(4)},
}
for name, arm in moments.items():
    delay = chance.random()
    child = os.fork()
    if child == 0:
        chance.seed(delay)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        arm()
        train(recipe)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    last = folder / "killed" / "last.pt"
    step = checkpoint.load(last)["step"] if last.exists() else 0
    print(json.dumps({"moment": name, "killed": os.WIFSIGNALED(status), "step": step}), flush=True)
train(recipe)
'''


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, tiny_text: str) -> Killed:
    """A run left alone, the same run killed again and again, and when."""
    place = tmp_path_factory.mktemp("kills")
    more = 'select = "val:mean_recall"\neval_every = 0.5\nepochs = 12\n'
    (place / "tiny.toml").write_text(tiny_text.replace("epochs = 3\n", more))
    here = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(evenhand.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", KILLS, str(place / "tiny.toml"), str(place)],
        capture_output=True, text=True, timeout=300, env={**os.environ, **here},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return place / "whole", place / "killed", [json.loads(line) for line in done.stdout.splitlines()]


def test_trap_18_a_run_killed_at_any_moment_resumes_to_the_same_weights(killed: Killed) -> None:
    alone, resumed, moments = killed
    assert all(m["killed"] for m in moments if not m["moment"].startswith("time")), moments
    assert [m["step"] for m in moments] == sorted(m["step"] for m in moments)
    assert 0 < moments[3]["step"] < 24
    assert differing(alone / "last.pt", resumed / "last.pt") == []
    assert differing(alone / "best.pt", resumed / "best.pt") == []
    assert (alone / "measure.json").read_text() == (resumed / "measure.json").read_text()


def test_trap_18_the_log_of_a_killed_run_has_every_row_once(killed: Killed) -> None:
    assert rows(killed[1]) == rows(killed[0])


def test_trap_18_a_killed_run_is_described_in_full(killed: Killed) -> None:
    names = {"environment.json", "last.pt", "best.pt", "log.jsonl", "measure.json", "recipe.toml", "streams.json"}
    names |= {"model.json", "confusion.npz", "predictions.csv", "examples.json"}
    assert {p.name for p in killed[0].iterdir()} == names
    assert {p.name for p in killed[1].iterdir() if p.suffix != ".part"} == names


def test_trap_18_resuming_sweeps_up_the_parts_of_a_killed_write(tmp_path: Path, tiny: Make) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".last.pt.abcdefgh.part").write_bytes(b"half")
    train(tiny("run.epochs=1", "run.resume=true"))
    assert [p.name for p in (tmp_path / "run").glob("*.part")] == []


# folders


def test_a_run_describes_itself(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bin/evenhand", "train", "a b.toml", "--set", "data.groups='9/1'"])
    recipe = tiny("run.epochs=1")
    folder = train(recipe)
    assert is_complete(folder)
    assert load_recipe(folder / "recipe.toml") == load_recipe(folder) == recipe
    streams = json.loads((folder / "streams.json").read_text())
    assert streams["labelled"]["counts"] == [8, 6, 5, 5, 4, 3, 3, 2, 2, 2]
    assert streams["test"]["samples"] == 30
    assert len({stream["digest"] for stream in streams.values()}) == 3
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert shlex.split(environment["command"]) == ["evenhand", "train", "a b.toml", "--set", "data.groups='9/1'"]
    result = json.loads((folder / "measure.json").read_text())
    assert (result["split"], result["checkpoint"], result["step"], result["samples"]) == ("test", "last.pt", 2, 30)
    assert (result["select"], result["groups_rule"]) == ("last", "thirds, by training count")
    assert result["train_counts"] == streams["labelled"]["counts"]


def test_a_class_that_validation_lacks_is_named_when_training_begins(tiny: Make) -> None:
    recipe = tiny("data.val_per_class=2", "run.epochs=1", "run.stop_after=1")
    data = read_data(recipe)
    val = data.streams["val"]
    assert val.labels is not None
    some = val.subset(((val.labels != 3) & (val.labels != 7)).nonzero()[:, 0])
    with pytest.warns(UserWarning, match=f"validation has no {data.classes[3]}, {data.classes[7]}: what is measured"):
        train(recipe, data=replace(data, streams={**data.streams, "val": some}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(recipe.changed({"run.folder": f"{recipe.run.folder}-whole"}), data=data)


def test_an_opened_run_predicts_as_the_trained_method(tmp_path: Path, tiny: Make, build: Any) -> None:
    recipe = tiny("method.optim.ema=0.5", "method.loss=ldam")
    folder = train(recipe)
    method, data = build(recipe)
    fit(method, data.streams, recipe.run.model_copy(update={"folder": str(tmp_path / "again")}))
    opened = open_run(folder)
    images = data.streams["test"].fetch(torch.arange(5))
    assert torch.equal(opened.method.predict(images), method.predict(images))
    assert (opened.step, opened.checkpoint) == (6, "last.pt")


def test_measure_uses_the_selected_checkpoint_and_a_named_split(tiny: Make) -> None:
    folder = train(tiny("run.select=val:mean_recall", "run.keep_every=1"))
    best = checkpoint.load(folder / "best.pt")
    val = measure(folder, split="val")
    assert (val["checkpoint"], val["step"]) == ("best.pt", best["step"])
    assert val["mean_recall"] == best["best"]
    assert (folder / "measure-val.json").exists()
    assert json.loads((folder / "measure.json").read_text())["split"] == "test"
    assert open_run(folder, name="epoch-0001.pt").step == 2
    with pytest.raises(UserError, match="no 'train' split"):
        measure(folder, split="train")
    with pytest.raises(UserError, match="no checkpoint"):
        open_run(folder, name="epoch-0009.pt")


def test_a_paused_run_is_not_measured(tiny: Make) -> None:
    folder = train(tiny("run.stop_after=3"))
    assert not is_complete(folder)
    assert not (folder / "measure.json").exists()
    assert train(tiny("run.resume=true")) == folder
    assert json.loads((folder / "measure.json").read_text())["step"] == 6


def test_a_refused_folder_keeps_the_description_of_its_run(tiny: Make) -> None:
    folder = train(tiny("run.epochs=1"))
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(UserError, match="already holds a run"):
        train(tiny("run.epochs=2"))
    with pytest.raises(UserError, match="another recipe"):
        train(tiny("run.epochs=2", "run.resume=true"))
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_a_run_that_died_before_its_first_checkpoint_may_be_replaced_by_another_recipe(
    tmp_path: Path, tiny: Make
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text(tiny("method.net.width=3").toml())
    recipe = tiny("run.epochs=1", "run.resume=true")
    folder = train(recipe)
    assert load_recipe(folder).digest() == recipe.digest() == checkpoint.load(folder / "last.pt")["digest"]


def test_a_first_stage_of_other_data_is_not_reused(tmp_path: Path, tiny_file: Path, tiny_text: str) -> None:
    second = tmp_path / "second.toml"
    data, run = tiny_text.partition("[method]")[0], tiny_text.partition("[run]")[2]
    stage = f'[method]\nname = "second-stage"\nbatch = 16\n[needs]\nfirst = {json.dumps(str(tiny_file))}\n'
    second.write_text(f"{data}{stage}[run]{run}")
    place = f"run.folder={json.dumps(str(tmp_path / 'run'))}"
    folder = train(load_recipe(second, [place, "run.epochs=1"]))
    assert open_run(folder).step == 2
    firsts = {path.name for path in (tmp_path / "needs").iterdir() if path.is_dir()}
    assert len(firsts) == 1
    for change in ("data.imbalance=2", "run.seed=1"):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        train(load_recipe(second, [place, "run.epochs=1", change]))
        now = {path.name for path in (tmp_path / "needs").iterdir() if path.is_dir()}
        assert len(now - firsts) == 1
        firsts = now


def test_a_run_whose_recipe_was_edited_is_refused(tiny: Make) -> None:
    folder = train(tiny("run.epochs=1"))
    recipe = folder / "recipe.toml"
    for change in ("width = 3", "width = 2\nstem_stride = 2"):
        recipe.write_text(tiny("run.epochs=1").toml().replace("width = 2", change))
        with pytest.raises(UserError, match="recipe"):
            open_run(folder)


@pytest.mark.parametrize("missing", ["recipe.toml", "last.pt"])
def test_what_is_not_a_run_is_refused(tiny: Make, missing: str) -> None:
    folder = train(tiny("run.epochs=0"))
    (folder / missing).unlink()
    with pytest.raises(UserError, match=str(folder)) as caught:
        measure(folder)
    assert len(str(caught.value).splitlines()) == 1


def test_a_run_is_opened_where_it_was_trained_if_that_is_to_be_had(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = train(tiny("run.epochs=1", "run.device=cpu"))
    asked: list[str] = []
    monkeypatch.setattr("evenhand.parallel.local_device", lambda name: asked.append(name) or torch.device("cpu"))
    open_run(folder)
    open_run(folder, device="cuda:1")
    assert asked == ["cpu", "cuda:1"]
    monkeypatch.undo()
    text = (folder / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text(text.replace('device = "cpu"', 'device = "cuda:7"'))
    assert open_run(folder).step > 0
    with pytest.raises(UserError, match="'cuda:7' is not to be had"):
        open_run(folder, device="cuda:7")
    with pytest.raises(UserError, match="'cuda:7' is not to be had"):
        evenhand.load(folder, device="cuda:7")


def test_of_many_classes_that_validation_lacks_five_are_named() -> None:
    classes = tuple("abcdefgh")
    for lacking, said in (
        (5, "validation has no d, e, f, g, h: what"),
        (7, "validation has no b, c, d, e, f and 2 more: what"),
    ):
        labels = torch.arange(8 - lacking)
        val = Stream(Memory(torch.zeros(len(labels), 1)), labels, classes, "val")
        with pytest.warns(UserWarning, match=said):
            _tell_absent(SimpleNamespace(streams={"val": val}))  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for streams in ({}, {"val": Stream(Memory(torch.zeros(1, 1)), None, classes, "val")}):
            _tell_absent(SimpleNamespace(streams=streams))  # type: ignore[arg-type]

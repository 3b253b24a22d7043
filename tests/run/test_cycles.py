"""Cycles of training, selecting and asking: what an oracle is asked, and that nothing is lost wherever it is killed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evenhand.data.domains import read_truth
from evenhand.data.labels import named, read_answers
from evenhand.data.picks import read_picks
from evenhand.data.stream import Memory, Stream
from evenhand.errors import UserError
from evenhand.pieces.submodular import Pick
from evenhand.randomness import mix
from evenhand.run import checkpoint, cycles
from evenhand.run.cycles import cycle_recipe, run_cycles
from evenhand.run.oracle import Oracle
from evenhand.run.picking import How
from evenhand.run.recipe import Recipe, validate


def recipe(folder: Path, by: str = "entropy", **more: Any) -> Recipe:
    tree = {
        "method": {
            "name": "vaada", "batch": 16, "net": {"name": "small-cnn", "width": 2}, "bottleneck": 4, "hidden": 8,
        },
        "data": {
            "set": "shapes", "target": "shapes-negative", "n_max": 4, "target_max": 40, "test_per_class": 2,
            "augment": [],
        },
        "run": {
            "folder": str(folder), "steps": 3, "progress": False, "threads": 1, "resume": True,
            "select_also": ["oracle:accuracy"],
        },
        "cycles": {"by": by, "count": 2, "budget": 0.1, "starts": 1},
    }  # fmt: skip
    for table, values in more.items():
        tree[table] |= values
    return validate(tree, "tiny")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_cycles(recipe(tmp_path_factory.mktemp("cycles") / "whole"))


def test_labels_grow_and_leave_the_pool(whole: Path) -> None:
    """10a.12: |D_t| = c B, no name twice, the picks of a cycle are its labels."""
    told = json.loads((whole / "cycles.json").read_text())
    assert [row["labels"] for row in told["cycles"]] == [0, 4, 8]
    assert told["budget"] == 4
    assert told["queries"] == 8
    bought: list[str] = []
    truth = read_truth(recipe(whole).data)
    right = dict(zip(named(truth), [truth.classes[k] for k in truth.labels.tolist()], strict=True))  # type: ignore[union-attr]
    for round_ in (1, 2):
        picks = read_picks(whole / f"picks-{round_}.csv")
        assert None not in {term for row in picks for term in (row.uncertainty, row.diversity, row.representativeness)}
        names = [row.name for row in picks]
        assert set(names).isdisjoint(bought)
        bought += names
        answers = read_answers(whole / f"labels-{round_}.csv")
        assert [answer.name for answer in answers] == bought
        assert all(answer.label == right[answer.name] for answer in answers)
        streams = json.loads((whole / f"cycle-{round_}" / "streams.json").read_text())
        assert streams["target_labelled"]["samples"] == 4 * round_
        assert streams["target"]["samples"] == 40 - 4 * round_
        assert (whole / f"picks-{round_}.png").is_file()
    assert sum(told["cycles"][2]["bought"]) == 8
    assert told["cycles"][0]["also"].keys() == {"oracle:accuracy"}
    assert told["cycles"][0]["batch"]["classes"] >= 1
    assert 0 < told["cycles"][0]["batch"]["seconds"] < 600  # for four of forty samples
    assert told["cycles"][2]["batch"] is None
    points = json.loads((whole / "batch-2.json").read_text())["points"]
    assert {key: len(xy) for key, xy in points.items()} == {"source": 40, "pool": 36, "labelled": 4, "picked": 4}


def test_every_cycle_starts_from_the_same_weights(whole: Path) -> None:
    """Cycles are ordinary runs that differ in their labels alone."""
    runs = [cycle_recipe(recipe(whole), c) for c in range(3)]
    assert all(run.cycles is None for run in runs)
    assert runs[0].data.labels == ""
    same = [run.model_dump()["method"] for run in runs]
    assert same[0] == same[1] == same[2]
    assert {run.run.seed for run in runs} == {0}


def nets(folder: Path) -> list[torch.Tensor]:
    found = []
    for cycle in range(3):
        state = checkpoint.load(folder / f"cycle-{cycle}" / "last.pt")["method"]
        found += list(checkpoint._tensors(state))
    return found


PLACES = {
    "before training": ("train", 1), "after a training": ("_buy", 1), "while selecting": ("_select", 2),
    "before the gallery": ("_gallery", 1), "before picks are written": ("write_picks", 2),
    "before labels are written": ("write_answers", 1), "before the summary": ("_summary", 2),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_killed_anywhere_it_goes_on(place: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function, when = PLACES[place]
    real, calls = getattr(cycles, function), 0

    def dies(*arguments: Any, **named_: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == when:
            raise RuntimeError("killed")
        return real(*arguments, **named_)

    monkeypatch.setattr(cycles, function, dies)
    with pytest.raises(RuntimeError, match="killed"):
        run_cycles(recipe(tmp_path / "run"))
    monkeypatch.setattr(cycles, function, real)
    run_cycles(recipe(tmp_path / "run"))
    for round_ in (1, 2):
        assert [row.name for row in read_picks(tmp_path / "run" / f"picks-{round_}.csv")] == [
            row.name for row in read_picks(whole / f"picks-{round_}.csv")
        ]
    assert all(torch.equal(a, b) for a, b in zip(nets(tmp_path / "run"), nets(whole), strict=True))
    lines = (tmp_path / "run" / "oracle.jsonl").read_text().splitlines()
    assert len(lines) == 8  # nothing is asked twice


def test_a_paused_cycle_goes_on(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is paused: repeat the command"):
        run_cycles(recipe(tmp_path / "run", run={"stop_after": 2}))
    run_cycles(recipe(tmp_path / "run"))
    assert all(torch.equal(a, b) for a, b in zip(nets(tmp_path / "run"), nets(whole), strict=True))


def test_another_recipe_is_refused(whole: Path) -> None:
    with pytest.raises(UserError, match=r"differs in cycles\.by"):
        run_cycles(recipe(whole, by="margin"))


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="runs in one process"):
        run_cycles(recipe(tmp_path / "z"))
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(UserError, match="rounds of 20 labels use up the pool of 40"):
        run_cycles(recipe(tmp_path / "a", cycles={"budget": 20}))
    with pytest.raises(UserError, match="no selector is called 'entrpy'; did you mean 'entropy'"):
        run_cycles(recipe(tmp_path / "b", by="entrpy"))
    with pytest.raises(UserError, match=r"recipe has no \[cycles\] table"):
        run_cycles(recipe(tmp_path / "c").model_copy(update={"cycles": None}))
    with pytest.raises(UserError, match=r"data.labels is what cycles write themselves"):
        run_cycles(recipe(tmp_path / "d", data={"labels": "x.csv"}))
    with pytest.raises(UserError, match="add up to more than 1"):
        recipe(tmp_path / "e", cycles={"alpha": 0.9, "beta": 0.2})


# the oracle


def test_the_oracle_writes_before_it_answers_and_answers_again_for_nothing(tmp_path: Path) -> None:
    truth = read_truth(recipe(tmp_path).data)
    oracle = Oracle(truth, tmp_path / "log.jsonl")
    first = oracle.ask(named(truth)[:3], 1)
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 3
    again = Oracle(truth, tmp_path / "log.jsonl")
    assert again.ask(named(truth)[:4], 2)[:3] == first
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 4
    with pytest.raises(UserError, match="does not know 'nobody'"):
        again.ask(["nobody"], 1)


def test_a_log_cut_in_mid_line_loses_that_line_alone(tmp_path: Path) -> None:
    truth = read_truth(recipe(tmp_path).data)
    log = tmp_path / "log.jsonl"
    Oracle(truth, log).ask(named(truth)[:3], 1)
    log.write_bytes(log.read_bytes()[:-9])
    oracle = Oracle(truth, log)
    assert len(oracle.asked) == 2
    oracle.ask(named(truth)[:3], 1)
    assert len(Oracle(truth, log).asked) == 3
    log.write_text("nonsense\n")
    with pytest.raises(UserError, match="cannot be read"):
        Oracle(truth, log)


class Sure:
    """As sure of each vector as it says itself."""

    embeds = False

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_a_round_is_chosen_as_its_table_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a seed of its own; where perturbations were reckoned, their agreement with entropy is told."""
    asked = recipe(
        tmp_path, "s3vaada", cycles={"alpha": 0.6, "beta": 0.1, "starts": 7, "epsilon": 3.0, "temperature": 0.2}
    )
    x = torch.tensor([[3.0, 0.0], [1.0, 0.0], [0.5, 0.0], [0.0, 0.0]])
    pool = Stream(Memory(x, list("wxyz")), None, ("a", "b"), "target")
    opened = SimpleNamespace(method=Sure(), data=lambda: SimpleNamespace(streams={"target": pool}))
    monkeypatch.setattr(cycles, "open_run", lambda _: opened)
    heard: list[Any] = []

    def choose(sight: Any, budget: int, by: str) -> list[Pick]:
        heard.append((sight.how, budget, by, sight.labelled))
        if len(heard) < 3:
            sight.__dict__["vap"] = torch.special.entr(sight.probs).sum(1) * (3 - 2 * len(heard))
        return [Pick(3, 0.5, 0.25, 0.75), Pick(0, 0.1, 0.2, 0.3)]

    monkeypatch.setattr(cycles, "choose", choose)
    assert asked.cycles is not None
    for round_ in (1, 2, 3):
        cycles._select(asked, asked.cycles, tmp_path / f"picks-{round_}.csv", round_, 2)
    for round_, (how, budget, by, labelled) in enumerate(heard, 1):
        weights = {"alpha": 0.6, "beta": 0.1, "starts": 7, "epsilon": 3.0, "temperature": 0.2}
        assert how == How(seed=mix(0, "cycle", round_), **weights)  # type: ignore[arg-type]
        assert (budget, by, labelled) == (2, "s3vaada", None)
    told = [json.loads((tmp_path / f"batch-{round_}.json").read_text()) for round_ in (1, 2, 3)]
    assert [one["numbers"].get("vap_and_entropy") for one in told] == [pytest.approx(1), pytest.approx(-1), None]
    assert told[0]["points"] == {}
    rows = read_picks(tmp_path / "picks-1.csv")
    assert [(row.name, row.rank, row.uncertainty, row.diversity, row.representativeness) for row in rows] == [
        ("z", 1, 0.5, 0.25, 0.75), ("w", 2, 0.1, 0.2, 0.3),
    ]  # fmt: skip
    assert rows[1].guesses[0] == ("a", pytest.approx(float(x[0].softmax(0)[0]), abs=1e-3))
    assert not (tmp_path / "picks-1.png").exists()  # vectors are no pictures

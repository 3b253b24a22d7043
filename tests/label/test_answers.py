"""Answers are kept at once, taken back, counted and settled; damage is named and loses nothing."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from evenhand.data.labels import NONE, read_answers
from evenhand.errors import UserError
from evenhand.label.answers import Answers
from evenhand.label.journal import Journal
from evenhand.label.picks import read_picks, shown

from .conftest import write_picks


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "labels.journal.jsonl"


def opened(picks: Path, journal: Path, **how: int) -> Answers:
    return Answers(read_picks(picks), Journal(journal), **how)


def test_an_answer_is_on_the_disk_before_it_is_acknowledged(picks: Path, journal: Path, monkeypatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(journal.read_bytes()))
    opened(picks, journal).give("a/1.png", "otter", "ann")
    assert [json.loads(line)["label"] for line in synced[-1].splitlines()] == ["otter"]


def test_answers_survive_a_restart_in_the_order_of_ranks(picks: Path, journal: Path, tmp_path: Path) -> None:
    first = opened(picks, journal)
    assert [row.rank for row in first.open_for("ann")] == list(range(1, 11))
    first.give("a/2.png", "otter", "ann")
    first.give("a/1.png", NONE, "ann")
    first.give("a/3.png", None, "ann")
    again = opened(picks, journal)
    assert [row.rank for row in again.open_for("ann")] == list(range(4, 11))
    again.write(tmp_path / "labels.csv")
    kept = [(row.name, row.label, row.labeller) for row in read_answers(tmp_path / "labels.csv")]
    assert kept == [("a/1.png", NONE, "ann"), ("a/2.png", "otter", "ann"), ("a/3.png", "", "ann")]


def test_a_skip_leaves_the_sample_to_others(picks: Path, journal: Path) -> None:
    answers = opened(picks, journal)
    answers.give("a/1.png", None, "ann")
    assert answers.open_for("ann")[0].rank == 2
    assert answers.open_for("ben")[0].rank == 1
    answers.give("a/1.png", "lynx", "ben")
    assert [(row.label, row.labeller) for row in answers.rows()] == [("lynx", "ben")]


def test_undo_takes_back_the_last_answer_of_its_labeller_also_after_a_restart(picks: Path, journal: Path) -> None:
    answers = opened(picks, journal)
    answers.give("a/1.png", "lynx", "ann")
    answers.give("a/2.png", "otter", "ann")
    answers.give("a/3.png", "quail", "ben")
    again = opened(picks, journal)
    undone = [again.undo("ann"), again.undo("ann"), again.undo("ann")]
    assert [row and row.rank for row in undone] == [2, 1, None]
    assert [(row.name, row.labeller) for row in opened(picks, journal).rows()] == [("a/3.png", "ben")]


def test_undo_of_a_changed_answer_leaves_none(picks: Path, journal: Path) -> None:
    answers = opened(picks, journal)
    answers.give("a/1.png", "lynx", "ann")
    answers.give("a/2.png", "lynx", "ann")
    answers.give("a/1.png", "otter", "ann")
    undone = answers.undo("ann")
    assert undone is not None
    assert undone.rank == 1
    assert [row.name for row in answers.rows()] == ["a/2.png"]


def test_as_many_answers_as_are_needed_and_conflicts_until_settled(picks: Path, journal: Path) -> None:
    answers = opened(picks, journal, needed=2)
    answers.give("a/1.png", "lynx", "ann")
    assert not answers.done("a/1.png")
    answers.give("a/1.png", "otter", "ben")
    assert answers.done("a/1.png")
    assert [row.rank for row in answers.conflicts()] == [1]
    assert sorted(row.label for row in answers.rows()) == ["lynx", "otter"]
    answers.give("a/1.png", "otter", "eve", settles=True)
    assert answers.conflicts() == []
    assert [(row.label, row.labeller) for row in opened(picks, journal, needed=2).rows()] == [("otter", "eve")]


def test_classes_are_added_only_where_allowed(picks: Path, journal: Path) -> None:
    with pytest.raises(UserError, match="--new-classes"):
        opened(picks, journal).add_class("zebra")
    answers = opened(picks, journal, new_classes=True)
    for wrong in ("#none", "  "):
        with pytest.raises(UserError, match="cannot be a class"):
            answers.add_class(wrong)
    answers.add_class("zebra")
    answers.give("a/1.png", "zebra", "ann")
    assert opened(picks, journal).classes[-1] == "zebra"


def test_labels_outside_the_classes_are_refused_and_not_kept(picks: Path, journal: Path) -> None:
    with pytest.raises(UserError, match="'zebra' is none of the 5 classes"):
        opened(picks, journal).give("a/1.png", "zebra", "ann")
    assert journal.read_bytes() == b""


def test_a_line_cut_by_a_kill_is_dropped_and_work_goes_on(picks: Path, journal: Path) -> None:
    opened(picks, journal).give("a/1.png", "lynx", "ann")
    with journal.open("ab") as file:
        file.write(b'{"name": "a/2.png", "lab')
    answers = opened(picks, journal)
    answers.give("a/3.png", "otter", "ann")
    assert [row.name for row in opened(picks, journal).rows()] == ["a/1.png", "a/3.png"]


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\x00nonsense",
        b"[1]",
        b"{}",
        b'{"name": "gone.png", "label": "lynx", "labeller": "a"}',
        b'{"name": "a/1.png", "label": 3, "labeller": "a"}',
    ],
)
def test_damage_in_the_middle_is_named_and_nothing_is_touched(picks: Path, journal: Path, line: bytes) -> None:
    opened(picks, journal).give("a/1.png", "lynx", "ann")
    whole = journal.read_bytes() + line + b"\n" + journal.read_bytes()
    journal.write_bytes(whole)
    with pytest.raises(UserError, match="line 2"):
        opened(picks, journal)
    assert journal.read_bytes() == whole


def test_a_full_disk_loses_nothing_that_was_acknowledged(picks: Path, journal: Path, monkeypatch) -> None:
    answers = opened(picks, journal)
    answers.give("a/1.png", "lynx", "ann")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="free space"):
        answers.give("a/2.png", "lynx", "ann")
    monkeypatch.undo()
    assert [row.rank for row in answers.open_for("ann")] == list(range(2, 11))
    answers.give("a/2.png", "otter", "ann")
    assert [row.label for row in opened(picks, journal).rows()] == ["lynx", "otter"]


# picks


def test_bad_picks_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="evenhand select"):
        read_picks(tmp_path / "picks.csv")
    (tmp_path / "picks.csv").write_text("file,rank\na,1\n")
    with pytest.raises(UserError, match="no column 'name'"):
        read_picks(tmp_path / "picks.csv")
    with pytest.raises(UserError, match="nothing to label"):
        read_picks(write_picks(tmp_path, []))
    with pytest.raises(UserError, match=r"line 2.*'first'"):
        read_picks(write_picks(tmp_path, [{"name": "a", "rank": "first"}]))
    with pytest.raises(UserError, match="'a' stands there twice"):
        read_picks(write_picks(tmp_path, [{"name": "a", "path": "a"}, {"name": "a", "path": "a"}]))
    path = write_picks(tmp_path, [{"name": "train/3"}])
    path.with_suffix(".json").unlink()
    with pytest.raises(UserError, match="neither a text nor a file"):
        read_picks(path)


def test_files_that_are_gone_are_named(picks: Path) -> None:
    (picks.parent / "pool" / "a" / "4.png").unlink()
    found = read_picks(picks)
    assert found.gone == ["a/4.png"]
    with pytest.raises(UserError, match="gone"):
        shown(found.rows[3], found.pool)


def test_a_pool_that_was_moved_is_named_anew(picks: Path, tmp_path: Path) -> None:
    (tmp_path / "pool").rename(tmp_path / "elsewhere")
    assert len(read_picks(picks).gone) == 10
    assert read_picks(picks, tmp_path / "elsewhere").gone == []


def test_nothing_outside_the_pool_is_shown(tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    (tmp_path / "pool").mkdir()
    Image.new("RGB", (4, 4)).save(secret)
    (tmp_path / "pool" / "link.png").symlink_to(secret)
    rows = [{"name": "../secret.png"}, {"name": "x", "path": str(secret)}, {"name": "link.png"}]
    found = read_picks(write_picks(tmp_path, rows))
    for row in found.rows:
        with pytest.raises(UserError, match="not inside the pool"):
            shown(row, found.pool)


def test_images_are_encoded_anew_upright_and_limited(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    large = Image.new("RGB", (4000, 1000), "red")
    exif = large.getexif()
    exif[0x0112] = 6  # lies on its side
    exif[0x010E] = "where it was taken"
    large.save(tmp_path / "pool" / "large.jpg", exif=exif)
    (tmp_path / "pool" / "not.png").write_bytes(b"<script>alert(1)</script>")
    found = read_picks(write_picks(tmp_path, [{"name": "large.jpg"}, {"name": "not.png"}]))
    data = shown(found.rows[0], found.pool)
    (tmp_path / "back.jpg").write_bytes(data)
    with Image.open(tmp_path / "back.jpg") as image:
        assert image.height == 1600
        assert image.width == 400
        assert not image.getexif()
    assert b"where it was taken" not in data
    with pytest.raises(UserError, match="cannot be read as an image"):
        shown(found.rows[1], found.pool)


def test_deep_and_transparent_images_are_seen_as_the_model_sees_them(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    Image.fromarray(np.full((8, 8), 100 * 257, np.uint16)).save(tmp_path / "pool" / "deep.png")
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(tmp_path / "pool" / "clear.png")
    found = read_picks(write_picks(tmp_path, [{"name": "deep.png"}, {"name": "clear.png"}]))
    seen = [Image.open(io.BytesIO(shown(row, found.pool))).getpixel((0, 0)) for row in found.rows]
    assert seen == [(100,) * 3, (255,) * 3]


def test_an_image_bomb_is_refused_before_it_is_decoded(picks: Path, monkeypatch) -> None:
    monkeypatch.setattr("evenhand.label.picks.MOST_PIXELS", 1000)
    found = read_picks(picks)
    with pytest.raises(UserError, match="40 x 30 pixels: too many"):
        shown(found.rows[0], found.pool)

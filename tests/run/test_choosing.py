"""The recipe that ``train DATA`` chooses: the data read as asked, the length and the reason as the data are."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenhand.run import choosing
from evenhand.run.choosing import choose
from helpers import scene, truncate


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is fetched, built or timed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(choosing, "obtain_weights", lambda _: Path("weights"))
    monkeypatch.setattr(choosing, "seconds_to_embed", lambda _, side: side / 1000)
    monkeypatch.setattr(choosing, "build_method", lambda *_: None)
    monkeypatch.setattr(choosing, "time_steps", lambda *_: (0.1, 100, 10))


def pictures(root: str, **counts: int) -> Path:
    for k, (name, count) in enumerate(counts.items()):
        for i in range(count):
            scene(Path(root, name, f"{i}.png"), 1000 * k + i, (32, 32))
    return Path(root)


def test_data_are_looked_at_as_they_will_be_read() -> None:
    rows = [f"a fine day number {i} in town,{'good' if i % 3 else 'bad'}" for i in range(30)]
    Path("reviews.csv").write_text("review,stars\n" + "\n".join(rows) + "\n")
    recipe = choose("reviews.csv", ["data.text_column=review", "data.label_column=stars"])
    assert (recipe.data.text_column, recipe.data.label_column) == ("review", "stars")
    truncate(pictures("mine", ant=12, bee=3) / "ant" / "0.png")
    assert choose("mine", ["data.skip_unreadable=true"]).data.skip_unreadable

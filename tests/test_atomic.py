"""What the one writer refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenhand import atomic
from evenhand.errors import UserError


@pytest.mark.parametrize("half", [0xD83D, 0xDCFF])  # of an emoji; a byte of a file's name
def test_text_that_is_no_utf8_is_one_line_with_its_surroundings(tmp_path: Path, half: int) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text("old")
    with pytest.raises(UserError, match=r"cannot write .*recipe\.toml: '.*photos/ph.*' is not UTF-8; rename what"):
        atomic.write(path, f'[data]\nset = "photos/ph{chr(half)}"\n')
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]

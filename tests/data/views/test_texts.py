"""Views of tokens: what each step may and may not do to a text."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evenhand.data.views.texts import build_text_view, mask, span, swap, word_dropout
from evenhand.data.vocabulary import PAD, UNKNOWN
from helpers import seeded

STEPS = {"word-dropout": word_dropout, "mask": mask, "swap": swap, "span": span}
LENGTH = 12


def texts(count: int = 200, longest: int = LENGTH, seed: int = 0) -> Tensor:
    """Texts of different lengths whose words are numbered by place: 10, 11, 12, ..."""
    size = torch.randint(1, longest + 1, (count, 1), generator=seeded(seed))
    place = torch.arange(longest)
    return torch.where(place < size, 10 + place, PAD).expand(count, -1)


@given(st.sampled_from(sorted(STEPS)), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_words_stay_in_front_and_none_is_invented(name: str, seed: int) -> None:
    x = texts(20, seed=seed)
    out = STEPS[name](x, seeded(seed))
    assert out.shape == x.shape
    assert out.dtype == torch.int64
    real = out != PAD
    assert real[:, 0].all()
    assert (real[:, 1:] <= real[:, :-1]).all()
    for before, after in zip(x, out, strict=True):
        seen = after[(after != PAD) & (after != UNKNOWN)].tolist()
        assert len(set(seen)) == len(seen)
        assert set(seen) <= set(before.tolist())


def test_word_dropout_keeps_the_order_and_the_rate() -> None:
    x = torch.arange(10, 110).expand(300, -1)
    out = word_dropout(x, seeded(), odds=0.3)
    kept = out != PAD
    assert abs(kept.float().mean().item() - 0.7) < 0.01
    for row in out:
        assert (row[row != PAD].diff() > 0).all()
    assert torch.equal(word_dropout(x[:2], seeded(), odds=1.0), x[:2])  # never an empty text


def test_mask_hides_words_at_its_rate_and_no_padding() -> None:
    x = texts(2000)
    out = mask(x, seeded(), odds=0.25)
    assert ((out == PAD) == (x == PAD)).all()
    assert abs((out == UNKNOWN)[x != PAD].float().mean().item() - 0.25) < 0.01


def test_swap_moves_words_a_little() -> None:
    x = texts(500)
    out = swap(x, seeded(), reach=3.0)
    assert torch.equal(out.sort(1).values, x.sort(1).values)
    moved = (out - 10 - torch.arange(LENGTH)).abs()[x != PAD]
    assert moved.max() == 2
    assert 0.4 < (moved > 0).float().mean() < 0.9


def test_span_is_one_run_of_at_least_its_share() -> None:
    x = texts(2000)
    out = span(x, seeded(), low=0.5)
    before, after = (x != PAD).sum(1), (out != PAD).sum(1)
    assert (2 * after >= before).all()
    assert (after < before).any()
    for row in out:
        assert (row[row != PAD].diff() == 1).all()
    full = before == LENGTH
    assert set(out[full, 0].tolist()) == set(range(10, 10 + LENGTH // 2))


@pytest.mark.parametrize("name", sorted(STEPS))
def test_samples_draw_for_themselves_and_repeat_by_seed(name: str) -> None:
    x = (10 + torch.arange(LENGTH)).expand(50, -1)
    out = STEPS[name](x, seeded(3))
    assert len({tuple(row) for row in out.tolist()}) > 3
    assert torch.equal(out, STEPS[name](x, seeded(3)))
    assert not torch.equal(out, STEPS[name](x, seeded(4)))


def test_steps_run_in_order() -> None:
    x = texts(30)
    chance = seeded(5)
    wanted = word_dropout(swap(x, chance), chance)
    assert torch.equal(build_text_view(["swap", "word-dropout"], length=LENGTH)(x, seeded(5)), wanted)


def test_back_translation_comes_first_and_changes_on() -> None:
    pair = torch.cat([texts(4, seed=1), texts(4, seed=2) + 100 * (texts(4, seed=2) != PAD)], 1)
    pair[0, LENGTH:] = PAD  # not translated
    plain = build_text_view(["back-translation"], length=LENGTH, translations=True)(pair, seeded())
    assert torch.equal(plain, torch.cat([pair[:1, :LENGTH], pair[1:, LENGTH:]]))
    mixed = build_text_view(["back-translation", "swap"], length=LENGTH, translations=True)(pair, seeded())
    assert torch.equal(mixed, swap(plain, seeded()))
    with pytest.raises(ValueError, match="comes first and once"):
        build_text_view(["swap", "back-translation"], length=LENGTH, translations=True)
    with pytest.raises(ValueError, match="needs texts with a column back_translation"):
        build_text_view(["back-translation"], length=LENGTH)


def test_bad_names_and_samples() -> None:
    with pytest.raises(ValueError, match="'word-dropot' is unknown; did you mean 'word-dropout'"):
        build_text_view(["word-dropot"], length=4)
    view = build_text_view([], length=4)
    assert view(torch.ones(2, 4, dtype=torch.int64)).shape == (2, 4)
    with pytest.raises(ValueError, match=r"this view takes tokens, int64 \(N, 4\)"):
        view(torch.zeros(2, 5, dtype=torch.int64))
    with pytest.raises(ValueError, match="chance is None"):
        build_text_view(["swap"], length=4)(torch.ones(2, 4, dtype=torch.int64))


def test_steps_of_texts_literally() -> None:
    x = torch.tensor([[5, 6, 7, 8, 9, 0, 0, 0], [5, 6, 7, 8, 9, 10, 11, 12]]).repeat(20, 1)
    drawn = torch.rand(x.shape, generator=seeded(1))

    def kept(row: list[int], wanted: list[bool]) -> list[int]:
        words = [w for w, keep in zip(row, wanted, strict=True) if w and keep] or [w for w in row if w]
        return words + [0] * (len(row) - len(words))

    rows = list(zip(x.tolist(), drawn.tolist(), strict=True))
    for odds in (0.2, 0.9):
        want = [kept(row, [d >= odds for d in draws]) for row, draws in rows]
        assert word_dropout(x, seeded(1), odds=odds).tolist() == want
    assert torch.equal(word_dropout(x, seeded(1)), word_dropout(x, seeded(1), odds=0.2))
    masked = [[1 if w and d < 0.15 else w for w, d in zip(row, draws, strict=True)] for row, draws in rows]
    assert mask(x, seeded(1)).tolist() == masked
    moved = []
    for row, draws in rows:
        size = sum(w > 0 for w in row)
        order = sorted(range(size), key=lambda i: i + 3.0 * draws[i])
        moved.append([row[i] for i in order] + [0] * (8 - size))
    assert swap(x, seeded(1)).tolist() == moved
    share, where = torch.rand(2, 40, 1, generator=seeded(1))
    runs = []
    for row, s, at in zip(x.tolist(), share.flatten().tolist(), where.flatten().tolist(), strict=True):
        words = [w for w in row if w]
        many = math.ceil(len(words) * (0.5 + 0.5 * s))
        start = int((len(words) - many + 1) * at)
        runs.append(words[start : start + many] + [0] * (8 - many))
    assert span(x, seeded(1)).tolist() == runs


def test_a_view_shows_the_translation_where_there_is_one() -> None:
    x = torch.tensor([[5, 6, 0, 7, 8, 9], [5, 6, 0, 0, 0, 0]])
    plain, other = (build_text_view(names, length=3, translations=True) for names in ([], ["back-translation"]))
    assert plain(x).tolist() == [[5, 6, 0], [5, 6, 0]]
    assert other(x).tolist() == [[7, 8, 9], [5, 6, 0]]
    assert other(x[:, :3]).tolist() == [[5, 6, 0], [5, 6, 0]]
    assert not build_text_view(["swap"], length=3).translated
    with pytest.raises(ValueError, match="this view takes tokens"):
        plain(x[:, :4])
    with pytest.raises(ValueError, match="needs texts with a column"):
        build_text_view(["back-translation"], length=3)
    for names in (["swap", "back-translation"], ["back-translation", "back-translation"]):
        with pytest.raises(ValueError, match="comes first and once"):
            build_text_view(names, length=3, translations=True)

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from PIL import Image

from evenhand.measure.hessian import Spectrum
from evenhand.report.charts.hessian import plot_dynamics, plot_spectra
from evenhand.report.charts.svg import colour


def spectrum(low: float, high: float) -> Spectrum:
    nodes = torch.tensor([low, 0.0, high], dtype=torch.float64)
    return Spectrum(nodes, torch.tensor([0.1, 0.8, 0.1], dtype=torch.float64), low, high, 0.0, 0.0)


@pytest.fixture
def words() -> object:
    """SVG text as text, so that a test can read it."""
    with mpl.rc_context({"svg.fonttype": "none"}):
        yield


@pytest.mark.usefixtures("words")
def test_spectra_have_a_panel_per_class(tmp_path: Path) -> None:
    path = tmp_path / "spectra.svg"
    classes = {
        "shirt": spectrum(-2, 80),
        "boot": spectrum(0, 0),
        "bag": spectrum(-1e-4, 0.1),
        "coat": spectrum(-1, 1),
    }
    plot_spectra(classes, path, title="epoch 10")
    text = path.read_text()
    ElementTree.fromstring(text)
    assert all(name in text for name in [*classes, "epoch 10", "log10 density"])
    assert "shirt: -2 to 80, ratio 0.025" in text


def test_only_negative_eigenvalues_are_vermilion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled: dict[str, Any] = {}
    draw = Axes.fill_between

    def keep(panel: Axes, x: Any, *args: Any, where: Any = True, color: str = "", **more: Any) -> Any:
        filled[color] = x[np.broadcast_to(where, x.shape)]
        return draw(panel, x, *args, where=where, color=color, **more)

    monkeypatch.setattr(Axes, "fill_between", keep)
    plot_spectra({"shirt": spectrum(-2, 80)}, tmp_path / "one.svg")
    assert (filled[colour(0)].min() >= 0, filled[colour(0)].max() > 80) == (True, True)
    assert (filled[colour(1)].min() < -2, filled[colour(1)].max() <= 0) == (True, True)


@pytest.mark.usefixtures("words")
def test_dynamics_draw_every_class(tmp_path: Path) -> None:
    path = tmp_path / "dynamics.svg"
    plot_dynamics({"shirt": [(10, -2, 80), (5, -1, 90)], "boot": [(5, 0, 0)]}, path)
    text = path.read_text()
    assert all(name in text for name in ["shirt", "boot", "|smallest / largest|", "epoch"])


def test_png_by_suffix(tmp_path: Path) -> None:
    plot_spectra({"shirt": spectrum(-2, 80)}, tmp_path / "one.png")
    with Image.open(tmp_path / "one.png") as picture:
        assert picture.format == "PNG"
    with pytest.raises(ValueError, match="not supported"):
        plot_spectra({"shirt": spectrum(-2, 80)}, tmp_path / "one.docx")


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="results is empty"):
        plot_spectra({}, tmp_path / "none.svg")
    with pytest.raises(ValueError, match="history is empty"):
        plot_dynamics({"shirt": []}, tmp_path / "none.svg")

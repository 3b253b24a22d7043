"""What is logged between two readings."""

from __future__ import annotations

import pytest
import torch

from evenhand import parallel
from evenhand.run.log import Meter


def test_means_over_the_steps_since_the_last_reading() -> None:
    meter = Meter()
    for value in (1.0, 3.0):
        meter.add({"loss": torch.tensor(value), "rate": torch.tensor(0.5)})
    assert meter.read() == {"loss": 2.0, "rate": 0.5}
    assert meter.read() == {}
    for told in ({"loss": 1.0, "r1": 6.0}, {"loss": 2.0}, {"loss": 3.0}):  # what comes now and then is not diluted
        meter.add({name: torch.tensor(value) for name, value in told.items()})
    assert meter.read() == {"loss": 2.0, "r1": 6.0}


def test_scalars_of_a_device_and_of_the_cpu_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss lives where the network is, a schedule's value on the CPU; "meta" stands in for a GPU."""
    seen = []
    monkeypatch.setattr(parallel, "mean", lambda x: seen.append(x.device.type) or torch.ones(x.shape))
    meter = Meter()
    meter.add({"loss": torch.ones((), device="meta"), "reversal": torch.tensor(0.5)})
    assert set(meter.read()) == {"loss", "reversal"}
    assert seen == ["meta"]

"""Seeding the global generators without their records of devices that are not in use."""

from __future__ import annotations

import pytest
import torch

from evenhand.randomness import reseed


def test_reseed_is_manual_seed_for_the_cpu() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2**40 + 7)
        wanted = torch.rand(5), torch.get_rng_state()
        torch.rand(3)
        reseed(2**40 + 7)
        assert torch.equal(torch.rand(5), wanted[0])
        assert torch.equal(torch.get_rng_state(), wanted[1])


def test_generators_of_a_gpu_in_use_are_seeded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    with torch.random.fork_rng(devices=[]):
        reseed(3)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        reseed(4)
    assert seeds == [4]

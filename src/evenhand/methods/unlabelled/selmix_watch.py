"""What SelMix keeps of its refreshes for the report: series of all, matrices and gain fidelity of a few."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evenhand.pieces.selmix import pair_entropy

BLOCKS = 50  # rows of a matrix that is kept; more classes share them
PARTS = 4  # the matrices are kept at the start and after each quarter of the refreshes


class Diary:
    """``steps``, ``largest`` and ``entropy`` (T,) of each refresh; at some, matrices (S, k, k) and pairs (S, P, 3).

    Rows and columns go from the most frequent class to the rarest.
    """

    def __init__(self, counts: list[int]) -> None:
        self.order = torch.tensor(sorted(range(len(counts)), key=lambda k: -counts[k]))
        k = min(len(counts), BLOCKS)
        self.kept: dict[str, Tensor] = {
            "steps": torch.empty(0, dtype=torch.int64), "largest": torch.empty(0), "entropy": torch.empty(0),
            "shown": torch.empty(0, dtype=torch.int64), "gain": torch.empty(0, k, k),
            "distribution": torch.empty(0, k, k), "fidelity": torch.empty(0, 0, 3),
        }  # fmt: skip

    @property
    def largest(self) -> Tensor:
        return self.kept["largest"]

    @staticmethod
    def wanted(turn: int, turns: int) -> bool:
        """Whether this refresh is one of those whose matrices are kept."""
        return turn in {round(part * (turns - 1) / PARTS) for part in range(PARTS + 1)}

    def note(self, step: int, gain: Tensor, distribution: Tensor) -> None:
        self._add(steps=torch.tensor(step), largest=gain.max(), entropy=pair_entropy(distribution))

    def show(self, step: int, gain: Tensor, distribution: Tensor, fidelity: Tensor) -> None:
        if not len(self.kept["fidelity"]):
            self.kept["fidelity"] = torch.empty(0, *fidelity.shape)
        mean, mass = self._blocks(gain, "mean"), self._blocks(distribution, "sum")
        self._add(shown=torch.tensor(step), gain=mean, distribution=mass, fidelity=fidelity)

    def _add(self, **more: Tensor) -> None:
        for key, value in more.items():
            self.kept[key] = torch.cat([self.kept[key], value.detach().cpu().to(self.kept[key].dtype)[None]])

    def _blocks(self, matrix: Tensor, how: str) -> Tensor:
        sorted_ = matrix.detach().cpu().float()[self.order][:, self.order]
        K = len(sorted_)
        block = torch.arange(K) * min(K, BLOCKS) // K  # (K,) the row that a class goes to
        ones = torch.zeros(min(K, BLOCKS), K).index_put_((block, torch.arange(K)), torch.ones(()))
        if how == "mean":
            ones = ones / ones.sum(1, keepdim=True)
        return ones @ sorted_ @ ones.T

    def details(self) -> dict[str, Any]:
        """For the final table; matrices as arrays, which become files of their own."""
        k = self.kept
        series = {key: k[key].tolist() for key in ("steps", "largest", "entropy", "shown")}
        arrays = {f"pair_{key}": k[key].numpy() for key in ("gain", "distribution", "fidelity")}
        return {"selmix": series, **arrays}

    def state(self) -> dict[str, Tensor]:
        return dict(self.kept)

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.kept = {key: value.cpu() for key, value in state.items()}

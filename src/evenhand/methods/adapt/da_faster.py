"""DA-Faster R-CNN, and SDAT on it (spec 09, section 2.8).

Scenes of another domain look different as a whole and in their objects. So two classifiers learn to tell the domains
apart, one by every cell of the feature maps, one by every region, while reversed gradients teach the features to fool
them; a third term asks that both agree, through a copy that is not reversed. SDAT smooths the task loss alone: its
classification part, as recommended, or all of it; the adversarial terms enter in the second pass only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from evenhand import parallel
from evenhand.data.loader import Batch, Feed
from evenhand.data.prepared import Data
from evenhand.data.stream import Streams
from evenhand.methods.adapt.detector import Detector, DetectorTable, Pass, Scalars
from evenhand.methods.protocol import Progress
from evenhand.pieces.domain import reverse_gradient
from evenhand.pieces.norms import global_norm
from evenhand.pieces.sam import SAM, relative_radius
from evenhand.randomness import dice, mix, reseed


class DAFasterSettings(DetectorTable):
    """[method] of DA-Faster; ``smooth`` makes SDAT of it."""

    name: Literal["da-faster"] = "da-faster"
    image: bool = Field(True, description="tell domains by the cells of the feature maps")
    instance: bool = Field(True, description="tell domains by the regions")
    consistency: bool = Field(True, description="ask that both agree")
    reversal: float = Field(0.1, ge=0, description="coefficient of the reversed gradient, and of the copy that is not")
    hidden: int = Field(1024, gt=0, description="width of the regions' domain classifier; the maps' has half of it")
    smooth: Literal["none", "classification", "all"] = Field("none", description="SDAT: which task losses SAM acts on")
    rho: float = Field(0.15, ge=0, description="SDAT's radius")
    rho_relative: bool = Field(False, description="rho is a share of the weight norm")

    @model_validator(mode="after")
    def _nothing_smoothed(self) -> DAFasterSettings:
        for key in ("rho", "rho_relative"):
            if self.smooth == "none" and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(
                    f"{key} has no effect with smooth = 'none': set smooth = 'classification', or leave it out"
                )
        return self


class ImageHead(nn.Module):
    """A logit of being the source's for every cell of a map (N, C, h, w)."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(channels, hidden, 1), nn.Conv2d(hidden, 1, 1)
        for layer in (self.first, self.last):
            _start(layer, 0.001)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.first(x)))


class InstanceHead(nn.Module):
    """A logit of being the source's for every region (R, d)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 1)])
        for layer, spread in zip(self.layers, (0.01, 0.01, 0.05), strict=True):
            _start(layer, spread)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.dropout(F.relu(layer(x)), 0.5, self.training)
        return self.layers[-1](x)[:, 0]


class Domains(nn.Module):
    """Both classifiers, the maps' one shared by all levels of a pyramid."""

    def __init__(self, channels: int, inputs: int, hidden: int) -> None:
        super().__init__()
        self.image, self.instance = ImageHead(channels, hidden // 2), InstanceHead(inputs, hidden)


class DAFaster(Detector):
    """Two players: the detector, and the domain classifiers whose gradient reaches it reversed."""

    table: Any = DAFasterSettings

    def __init__(self, settings: DAFasterSettings, data: Data, *, seed: int, device: torch.device) -> None:
        super().__init__(settings, data, seed=seed, device=device)
        inputs = self.net.roi_heads.box_predictor.cls_score.in_features
        domains = Domains(self.net.backbone.out_channels, inputs, settings.hidden).to(device)
        self.adversary = settings.optim.player(domains, seed=seed)
        self.sam = SAM(self.player.optimizer, settings.rho)

    def feeds(self, streams: Streams) -> dict[str, Feed]:
        feeds = super().feeds(streams)
        (view,) = next(iter(feeds.values())).views
        return {**feeds, "target": Feed("target", self.settings.batch, (view,))}

    def schedule(self, at: Progress) -> None:
        super().schedule(at)
        self.settings.optim.apply(self.adversary, at)
        if self.settings.rho_relative:
            self.sam.rho = relative_radius(self.player.parameters, self.settings.rho)

    def update(self, batch: dict[str, Batch]) -> Scalars:
        images, objects = self.labelled(batch)
        first: Pass | None = None
        climb: Any = nullcontext()
        if self.settings.smooth != "none":
            first = self.forward(images, objects)
            task = first.classification + (first.regression if self.settings.smooth == "all" else 0.0)
            self.player.backward(task)  # the domain classifiers are not even run
            parallel.average_gradients(self.player.parameters)
            climb = self.sam.ascent()
        with climb as length:  # the weights stand at theta + rho g / |g|
            seen = self.forward(images, objects, None if first is None else first.regions)
            adversarial, heard = self.domain_losses(seen, batch["target"].x)
            loss = seen.classification + seen.regression + adversarial
            self.player.backward(loss, last=True)
        if first is not None:
            norm = global_norm(p.detach() for p in self.player.parameters)
            heard |= {"gradient_norm": length, "weight_norm": norm}
        self.adversary.step()
        self.player.step()
        return {"loss": loss.detach(), **seen.said, **heard}

    def domain_losses(self, seen: Pass, images: list[Tensor]) -> tuple[Tensor, Scalars]:
        """Means over cells and regions of both domains; of the target's images nothing is known but the pixels."""
        s: DAFasterSettings = self.settings
        heads: Any = self.adversary.net.train()
        framed, _ = self.net.transform(images)
        guess = self.guess(framed)
        sides = {
            1.0: self._side(seen.maps, seen.regions.proposals, seen.sizes, "source"),
            0.0: self._side(guess.maps, self.propose(framed, guess), framed.image_sizes, "target"),
        }
        terms: dict[str, list[Tensor]] = {"image": [], "instance": [], "consistency": []}
        for domain, (levels, vectors, counts) in sides.items():
            if s.image:
                cells = [heads.image(reverse_gradient(level, s.reversal)).flatten() for level in levels]
                terms["image"].append(_told(torch.cat(cells), domain))
            if s.instance:
                with self._dropping():
                    terms["instance"].append(_told(heads.instance(reverse_gradient(vectors, s.reversal)), domain))
            if s.consistency:
                with self._dropping():  # drops out what the term above does: both speak of the same classifier
                    terms["consistency"].append(self._disagreement(heads, levels, vectors, counts))
        found = {key: torch.stack(values).mean() for key, values in terms.items() if values}
        total = torch.stack(list(found.values())).sum() if found else seen.classification.new_zeros(())
        return total, {key: value.detach() for key, value in found.items()}

    def _side(
        self, maps: dict[str, Tensor], proposals: list[Tensor], sizes: list[tuple[int, int]], domain: str
    ) -> tuple[list[Tensor], Tensor, list[int]]:
        """Maps, regions (R, d) and their counts, of one domain's images.

        Regions are proposals drawn at random, by one rule for both domains: picked by labels here and by scores there,
        they would tell the domains apart by how they were picked.
        """
        drawn = []
        for i, boxes in enumerate(proposals):
            chance = dice(self.seed, "domains", domain, self.at.step, parallel.rank() * len(proposals) + i)
            rows = torch.randperm(len(boxes), generator=chance)[: self.settings.net.regions]
            drawn.append(boxes[rows.to(boxes.device)])
        return list(maps.values()), self.vectors(maps, drawn, sizes), [len(boxes) for boxes in drawn]

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        """Dropout draws from the global generators: here from this step's own seed, every time the same."""
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            reseed(mix(self.seed, "dropout", self.at.step, parallel.rank()))
            yield

    def _disagreement(self, heads: Any, levels: list[Tensor], vectors: Tensor, counts: list[int]) -> Tensor:
        """Mean over regions of |mean over the cells of its image - region| in probabilities, gradients not reversed."""
        forward = -self.settings.reversal
        cells = [heads.image(reverse_gradient(level, forward)).sigmoid().flatten(1) for level in levels]
        whole = torch.cat(cells, 1).mean(1)  # (N,)
        each = heads.instance(reverse_gradient(vectors, forward)).sigmoid()  # (R,)
        of = torch.arange(len(counts), device=each.device).repeat_interleave(torch.tensor(counts, device=each.device))
        return _mean((whole[of] - each).abs())

    def state(self) -> dict[str, Any]:
        return {**super().state(), "adversary": self.adversary.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.adversary.load_state(state["adversary"])


def _start(layer: Any, spread: float) -> None:
    nn.init.normal_(layer.weight, std=spread)
    nn.init.zeros_(layer.bias)


def _told(logits: Tensor, domain: float) -> Tensor:
    """Cross-entropy of telling the domain, mean over all places."""
    return _mean(F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, domain), reduction="none"))


def _mean(values: Tensor) -> Tensor:
    """Over the values of all processes, of which one may have more than another or none."""
    count = parallel.share(values.new_tensor(float(len(values))))
    return values.mean() * count if len(values) else values.sum()

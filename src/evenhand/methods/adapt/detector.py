"""Faster R-CNN on labelled scenes: the source alone, or the oracle that is trained on the target (spec 09, detection).

An image goes through the backbone; a region network says where something is, and the heads say what and exactly where.
Its four losses, two of classification and two of box regression, are the task loss of the methods that adapt it.
Anchors and regions of an image are sampled by the step's seed and the image's place in the joint batch, so the same
in every pass and in any number of processes; a second pass may be handed the regions of the first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from evenhand import parallel
from evenhand.data.loader import Batch, Feed
from evenhand.data.prepared import Data
from evenhand.data.sets.catalogue import obtain_weights
from evenhand.data.stream import Streams
from evenhand.data.target import Found
from evenhand.errors import UserError
from evenhand.methods.common import Optim, Schedule, Started
from evenhand.methods.protocol import Finder, Progress
from evenhand.nets.detection.faster_rcnn import BACKBONES, build_detector, load_backbone
from evenhand.pieces.player import Player
from evenhand.randomness import dice
from evenhand.settings import Settings

Scalars = dict[str, Tensor]
OF_OTHERS = (
    "rho", "rho_relative", "rho_milestones", "rho_values", "rho_last", "freeze_bn", "accumulate", "clip_apart",
    "betas", "eps", "sigma", "lpf_gamma", "lpf_parts",
)  # fmt: skip


class DetectorNet(Started):
    """Which Faster R-CNN."""

    name: str = Field("mobilenet_v2", description=f"backbone: {', '.join(BACKBONES)}")
    weights: str = Field("", description="torchvision's file of the backbone or a detector, mobilenet_v2; '': none")
    short_side: int = Field(600, gt=0, description="images are scaled to this shorter side")
    long_side: int = Field(1200, gt=0, description="unless the longer one would exceed this")
    anchors: list[int] = Field([32, 64, 128, 256, 512], min_length=1, description="sides of the anchors, in pixels")
    proposals: int = Field(1000, gt=0, description="kept of each image after suppression")
    regions: int = Field(512, gt=0, description="sampled of them for the heads in training")
    pyramid: int = Field(256, gt=0, description="channels of a feature pyramid")
    head: int = Field(0, ge=0, description="width of the box head; 0: torchvision's 1024")

    def as_trained(self) -> Self:
        return self.model_copy(update={"weights": ""})

    def build(self, num_classes: int) -> nn.Module:
        net = build_detector(
            self.name, num_classes, short_side=self.short_side, long_side=self.long_side, anchors=self.anchors,
            proposals=self.proposals, regions=self.regions, pyramid=self.pyramid, fresh=self.head,
        )  # fmt: skip
        if self.weights:
            known = Path(self.weights).is_file()
            if not known and self.weights != "mobilenet_v2":  # other ResNets of ours were normalised otherwise
                raise UserError(f"net.weights = '{self.weights}' is neither a file nor weights we know: mobilenet_v2")
            load_backbone(net, self.weights if known else obtain_weights(self.weights))
        return net


class DetectorOptim(Optim):
    """SGD as detection uses it."""

    name: Literal["sgd"] = "sgd"
    lr: float = Field(1e-3, gt=0, description="base learning rate")
    weight_decay: float = Field(5e-4, ge=0)
    schedule: Schedule = Field("steps", description="of the learning rate")
    milestones: list[float] = Field([5 / 7], description="epochs, or shares of the run when below 1")
    factors: list[float] = Field([1.0, 0.1], description="learning-rate factor before, between, after")
    precision: Literal["float32", "bfloat16"] = Field("float32", description="autocast type of backbone and box head")
    channels_last: bool = Field(True, description="memory layout; faster convolutions nearly everywhere")

    @model_validator(mode="after")
    def _nothing_ignored(self) -> DetectorOptim:
        for key in OF_OTHERS:
            if getattr(self, key) != Optim.model_fields[key].default:
                where = ", whose radius is method.rho of da-faster" if key.startswith("rho") else ""
                raise ValueError(f"{key} has no effect on a detector{where}; leave it out")
        return self


class DetectorTable(Settings):
    """What the [method] tables of detectors have in common."""

    batch: int = Field(2, gt=0, description="labelled images per step, over all processes")
    net: DetectorNet = DetectorNet()
    optim: DetectorOptim = DetectorOptim()
    views: Literal["weak", "strong"] = Field("weak", description="of labelled images: data.augment or data.strong")

    @model_validator(mode="after")
    def _parts_that_are_there(self) -> DetectorTable:
        kind, pyramid = self.net.name.partition("-")[2], DetectorNet.model_fields["pyramid"].default
        if kind != "fpn" and self.net.pyramid != pyramid:
            raise ValueError(f"net.pyramid has no effect on '{self.net.name}', which has none; leave it out")
        if kind == "c4" and self.net.head:
            raise ValueError(f"net.head has no effect on '{self.net.name}', whose head is the last stage; set it to 0")
        return self


class DetectorSettings(DetectorTable):
    """[method] of a detector without adaptation."""

    name: Literal["detector"] = "detector"


class Regions(NamedTuple):
    """What the heads are trained on: boxes of each image, their classes (0: background), and what to regress to; and
    the proposals they were sampled from, which know no label."""

    boxes: list[Tensor]
    labels: list[Tensor]
    offsets: list[Tensor]
    proposals: list[Tensor]


class Guess(NamedTuple):
    """What the backbone and the region network make of images, before any suppression."""

    maps: dict[str, Tensor]  # (N, C, h, w), one for each level
    scores: Tensor
    deltas: Tensor
    anchors: list[Tensor]
    counts: list[int]  # of anchors in each level


class Pass(NamedTuple):
    """One pass over labelled images."""

    classification: Tensor
    regression: Tensor
    maps: dict[str, Tensor]  # (N, C, h, w), one for each level
    sizes: list[tuple[int, int]]  # of the images, without what pads them
    regions: Regions
    said: Scalars


class Detector(Finder):
    """One player: the detector. The methods that adapt it compose their steps of its parts."""

    table: Any = DetectorSettings
    player: Player

    @staticmethod
    def check_start(settings: Any) -> None:
        net = settings.net
        body, _, kind = net.name.partition("-")
        if kind and not net.weights:
            raise UserError(
                f"'{net.name}' without weights keeps a random stem and norms that do nothing: "
                f"--set method.net.weights={body}.pth, torchvision's ImageNet file (docs/detection.md)"
            )

    def __init__(self, settings: Any, data: Data, *, seed: int, device: torch.device) -> None:
        s = settings
        if s.batch % parallel.world():
            raise ValueError(f"batch = {s.batch} cannot be shared by {parallel.world()} processes alike; round it")
        self.settings, self.data, self.seed, self.device = s, data, seed, device
        self.net: Any = s.net.build(len(data.classes)).to(device)
        for part in (self.net.rpn, self.net.roi_heads):
            part.fg_bg_sampler = Sampler(self, part.fg_bg_sampler)
        self.player = s.optim.player(self.net, seed=seed)
        self.at = Progress(0, 1, 1)

    def feeds(self, streams: Streams) -> dict[str, Feed]:
        first = "source" if "source" in streams else "labelled"
        view = self.data.strong_view if self.settings.views == "strong" else self.data.train_view
        return {first: Feed(first, self.settings.batch, (view,))}

    def schedule(self, at: Progress) -> None:
        self.at = at
        self.settings.optim.apply(self.player, at)

    def update(self, batch: dict[str, Batch]) -> Scalars:
        seen = self.forward(*self.labelled(batch))
        loss = seen.classification + seen.regression
        self.player.backward(loss, last=True)
        self.player.step()
        return {"loss": loss.detach(), **seen.said}

    # parts of a step

    def labelled(self, batch: dict[str, Batch]) -> tuple[list[Tensor], list[Found]]:
        rows = batch["source"] if "source" in batch else batch["labelled"]
        return rows.x, [found.needed for found in rows.y]

    def forward(self, images: list[Tensor], objects: list[Found], regions: Regions | None = None) -> Pass:
        """The four losses; ``regions`` are those of an earlier pass over the same images."""
        from torchvision.models.detection.roi_heads import fastrcnn_loss

        self.net.train()
        wanted = [{"boxes": found.boxes.float(), "labels": found.labels + 1} for found in objects]
        framed, wanted = self.net.transform(images, wanted)
        guess = self.guess(framed)
        labels, matched = self.net.rpn.assign_targets_to_anchors(guess.anchors, wanted)
        offsets = self.net.rpn.box_coder.encode(matched, guess.anchors)
        rpn = self.net.rpn.compute_loss(guess.scores, guess.deltas, labels, offsets)
        if regions is None:
            proposals = self.propose(framed, guess)
            boxes, _, kinds, offsets = self.net.roi_heads.select_training_samples(proposals, wanted)
            regions = Regions(boxes, kinds, offsets, proposals)
        vectors = self.vectors(guess.maps, regions.boxes, framed.image_sizes)
        logits, corrections = self.net.roi_heads.box_predictor(vectors)
        roi = fastrcnn_loss(logits, corrections, regions.labels, regions.offsets)
        # Means over anchors and over regions, of which a process may have more than another.
        anchors_share = parallel.share(logits.new_tensor(float(self.net.rpn.fg_bg_sampler.taken)))
        regions_share = parallel.share(logits.new_tensor(float(len(logits))))
        rpn, roi = [part * anchors_share for part in rpn], [part * regions_share for part in roi]
        said = {"rpn_class": rpn[0], "rpn_box": rpn[1], "roi_class": roi[0], "roi_box": roi[1]}
        kept = {key: value.detach() for key, value in said.items()}
        return Pass(rpn[0] + roi[0], rpn[1] + roi[1], guess.maps, framed.image_sizes, regions, kept)

    def guess(self, framed: Any) -> Guess:
        """Of images without any label."""
        from torchvision.models.detection.rpn import concat_box_prediction_layers

        with self.player.autocast():
            maps = self.net.backbone(framed.tensors)
        maps = {name: level.float() for name, level in ({"0": maps} if isinstance(maps, Tensor) else maps).items()}
        levels = list(maps.values())
        scores, deltas = self.net.rpn.head(levels)
        counts = [level[0].numel() for level in scores]
        anchors = self.net.rpn.anchor_generator(framed, levels)
        scores, deltas = concat_box_prediction_layers(scores, deltas)
        return Guess(maps, scores, deltas, anchors, counts)

    def propose(self, framed: Any, guess: Guess) -> list[Tensor]:
        """Boxes of each image where something may be, the surest first."""
        rpn = self.net.rpn
        boxes = rpn.box_coder.decode(guess.deltas.detach(), guess.anchors).view(len(guess.anchors), -1, 4)
        return rpn.filter_proposals(boxes, guess.scores, framed.image_sizes, guess.counts)[0]

    def vectors(self, maps: dict[str, Tensor], boxes: list[Tensor], sizes: list[tuple[int, int]]) -> Tensor:
        """(R, d), one row for each region."""
        pooled = self.net.roi_heads.box_roi_pool(maps, boxes, sizes)
        with self.player.autocast():
            return self.net.roi_heads.box_head(pooled).float()

    # what is learned

    @torch.no_grad()
    def detect(self, images: Any) -> list[tuple[Tensor, Tensor, Tensor]]:
        net: Any = self.player.judged()
        found = net([image.to(self.device) for image in self.data.see(images)])
        return [(one["boxes"], one["scores"], one["labels"] - 1) for one in found]

    def state(self) -> dict[str, Any]:
        return {"player": self.player.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.player.load_state(state["player"])


class Sampler:
    """In place of torchvision's, which draws from the global generator: some positive, some negative of each image."""

    def __init__(self, method: Detector, like: Any) -> None:
        self.method, self.count, self.share = method, like.batch_size_per_image, like.positive_fraction
        self.taken = 0  # at the last call

    def __call__(self, matched: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Masks of what is taken; matched (A,) of an image: 1 and more positive, 0 negative, below ignored."""
        taken: tuple[list[Tensor], list[Tensor]] = ([], [])
        for i, row in enumerate(matched):
            chance = dice(self.method.seed, "regions", self.method.at.step, parallel.rank() * len(matched) + i)
            positive, negative = (row >= 1).nonzero()[:, 0], (row == 0).nonzero()[:, 0]
            room = min(len(positive), int(self.count * self.share))
            for some, most, masks in ((positive, room, taken[0]), (negative, self.count - room, taken[1])):
                mask = torch.zeros_like(row, dtype=torch.uint8)
                mask[some[torch.randperm(len(some), generator=chance)[:most].to(some.device)]] = 1
                masks.append(mask)
        self.taken = sum(int(mask.sum()) for masks in taken for mask in masks)
        return taken

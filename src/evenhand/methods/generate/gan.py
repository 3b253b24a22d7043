"""GANs: a generator draws images, a discriminator tells them from real ones; the baselines of specs 01 and 02.

``loss``, ``condition`` and ``net`` choose the paper: SNDCGAN and SNResGAN (relativistic, unconditional), cGAN, SNGAN
and BigGAN (projection), ACGAN (class logits), LSGAN (least squares), each with or without DiffAugment, LeCam and R1.
Methods that add a term to the generator's loss own a ``GAN`` and compose its halves.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from evenhand import parallel
from evenhand.data.loader import Batch, Feed
from evenhand.data.prepared import Data
from evenhand.data.stream import Stream, Streams
from evenhand.data.views.images import Pipeline
from evenhand.errors import UserError
from evenhand.methods.generate.judging import Judge
from evenhand.methods.generate.players import GANTable
from evenhand.methods.protocol import Progress
from evenhand.nets.gan import Verdict
from evenhand.pieces.diffaugment import diffaugment
from evenhand.pieces.gan_losses import LeCam, discriminator_loss, generator_loss, r1_penalty, sample_labels
from evenhand.pieces.losses import PerClass
from evenhand.pieces.spectral import class_spectral_norms, conditional_parameters
from evenhand.randomness import dice

STANDING = 16  # batches from which the BatchNorm statistics of evaluation are taken


class GANSettings(GANTable):
    """[method] of a plain GAN."""

    name: Literal["gan"] = "gan"


class GAN:
    """The generator's and the discriminator's half of a step, to be composed."""

    table = GANSettings

    def __init__(
        self, settings: GANTable, data: Data, *, seed: int, device: torch.device, annotator: Any = None
    ) -> None:
        self.settings, self.data, self.seed, self.device = settings, data, seed, device
        self.check(settings, data, [] if annotator is None else ["annotator"])
        if lone := [name for name, count in zip(data.classes, data.counts, strict=True) if count == 1]:
            warnings.warn(f"one training image of class {', '.join(lone[:5])}: it can only be repeated", stacklevel=2)
        self.judged_by = Judge(settings.measure, data, annotator, device)
        draws, tells = settings.net.build(data.facts["size"][0], data.channels, len(data.classes), settings.condition)
        self.generator = settings.optim_g.player(draws.to(device), settings.ema or None)
        self.discriminator = settings.optim_d.player(tells.to(device))
        self.conditional = settings.condition != "none"
        self.labelled = settings.condition in ("projection", "acgan")  # a label asked for is the label drawn
        self.latent: int = draws.latent  # type: ignore[assignment]
        self.lecam = LeCam(start=settings.lecam_start)
        self.step = 0
        self.noise, self.shake = dice(seed), dice(seed)

    @staticmethod
    def check(settings: GANTable, data: Data, given: Collection[str]) -> None:
        """Refuse what cannot work, before what is ``given`` in [needs] is trained for it."""
        size = data.facts.get("size", [])
        if len(size) != 2:
            raise UserError("generators draw images, but the samples are texts or vectors; choose another data.set")
        if size[0] != size[1]:
            remedy = "crop them, or set data.size for files"
            raise UserError(f"images are {size[0]} x {size[1]}: generators draw squares; {remedy}")
        if settings.measure.features != "inception" and "annotator" not in given:
            raise UserError(
                "a generator is judged by an annotator: set needs.annotator to a classifier's recipe or run, "
                "or method.measure.features = 'inception'"
            )
        with torch.device("meta"):
            settings.net.build(size[0], data.channels, len(data.classes), settings.condition)

    def feeds(self, streams: Streams) -> dict[str, Feed]:
        s, count = self.settings, len(streams["labelled"])
        if count < s.d_steps:
            raise UserError(f"{count} training images are too few for method.d_steps = {s.d_steps}; lower it")
        half = (0.5,) * self.data.channels
        view = self.data.train_view
        signed = Pipeline(view.steps if isinstance(view, Pipeline) else (), half, half)  # to [-1, 1], as tanh draws
        return {"labelled": Feed("labelled", s.batch * s.d_steps, (signed,), whole=True)}

    def schedule(self, at: Progress) -> None:
        self.step = at.step
        self.noise = dice(self.seed, "noise", at.step)  # of the joint batch: each process takes its part
        self.shake = dice(self.seed, "shake", at.step, parallel.rank())
        if self.settings.ema:
            self.generator.ema = (
                self.settings.ema if at.step >= self.settings.ema_start else 0.0
            )  # 0: the copy is the net

    def update(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        for real, labels in self.parts(batch["labelled"]):
            said = self.discriminate(real, labels)
        fakes, asked = self.generate(len(real))
        return said | self.improve(self.fooling_loss(fakes, asked, real, labels), said)

    def parts(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        """The real images and labels of each discriminator step; strided, so that processes share as one would."""
        for first in range(self.settings.d_steps):
            yield batch.x[first :: self.settings.d_steps], batch.y[first :: self.settings.d_steps]

    def discriminate(self, real: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """One discriminator step on a real batch and as many new fakes."""
        s, player = self.settings, self.discriminator
        player.net.train().requires_grad_(True)
        with torch.no_grad():
            fakes, asked = self.generate(len(real))
        both = labels if asked is None else torch.cat([labels, asked])
        with player.autocast():
            verdict = self._judgement(torch.cat([real, fakes]), both)  # one pass: no BatchNorm mixes the halves
            of_real, of_fake = verdict.score.float().chunk(2)
            loss = discriminator_loss(of_real, of_fake, s.loss)
            if verdict.logits is not None:
                for logits, truth in zip(verdict.logits.float().chunk(2), both.chunk(2), strict=True):
                    loss = loss + cross_entropy(logits, truth)
            if s.lecam:
                loss = loss + s.lecam * self.lecam(of_real, of_fake)
            if s.r1 and self.step % s.r1_every == 0:
                loss = loss + s.r1 * s.r1_every * r1_penalty(lambda x: self._judgement(x, labels).score, real)
        player.backward(loss)
        player.step()
        return {"discriminator": loss.detach(), "real": of_real.detach().mean(), "fake": of_fake.detach().mean()}

    def generate(self, count: int, frequencies: PerClass | None = None) -> tuple[Tensor, Tensor | None]:
        """Fakes in [-1, 1] and the labels asked for: evenly, or with chances ``1 / frequencies``."""
        z, labels = self._draw(count, self.noise, frequencies)
        with self.generator.autocast():
            return self.generator.net.train()(z, labels).float(), labels

    def fooling_loss(self, fakes: Tensor, asked: Tensor | None, real: Tensor, labels: Tensor) -> Tensor:
        """The generator's loss under the frozen discriminator; the relativistic one compares with the last reals."""
        player = self.discriminator
        player.net.requires_grad_(False)
        with player.autocast():
            verdict = self._judgement(fakes, asked)
            of_real = None
            if self.settings.loss == "relativistic":
                with torch.no_grad():
                    of_real = self._judgement(real, labels).score
            loss = generator_loss(verdict.score, self.settings.loss, of_real)
            if verdict.logits is not None and asked is not None:
                loss = loss + cross_entropy(verdict.logits.float(), asked)
        return loss

    def improve(self, loss: Tensor, said: dict[str, Tensor]) -> dict[str, Tensor]:
        """The generator's step on its whole loss; completes what the discriminator said for the log."""
        self.generator.backward(loss)
        self.generator.step()
        return {"generator": loss.detach(), "loss": loss.detach() + said["discriminator"]}

    def _judgement(self, images: Tensor, labels: Tensor | None) -> Verdict:
        if self.settings.diffaugment:
            images = diffaugment(images, self.shake, self.settings.diffaugment)
        verdict: Verdict = self.discriminator.net(images, labels)
        return verdict

    def _draw(
        self, count: int, chance: torch.Generator, frequencies: PerClass | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """This process's part of the joint batch's noise and labels."""
        mine = slice(parallel.rank() * count, (parallel.rank() + 1) * count)
        joint = parallel.world() * count
        z = torch.randn(joint, self.latent, generator=chance)[mine].to(self.device)
        if not self.conditional:
            return z, None
        return z, sample_labels(joint, len(self.data.classes), chance, frequencies=frequencies)[mine].to(self.device)

    # drawing and judging

    @torch.no_grad()
    def sample(
        self, count: int, labels: Tensor | None = None, *, generator: torch.Generator,
        frequencies: PerClass | None = None, batch: int = 256,
    ) -> Tensor:  # fmt: skip
        """Images, uint8 (N, C, H, W), by the averaged generator; labels are drawn unless given."""
        if labels is not None and not self.conditional:
            raise UserError("this generator is unconditional: it draws no class on demand; draw more and select")
        net, images = self._standing(), []
        z = torch.randn(count, self.latent, generator=generator)
        if labels is None and self.conditional:
            labels = sample_labels(count, len(self.data.classes), generator, frequencies=frequencies)
        for start in range(0, count, batch):
            part = slice(start, start + batch)
            drawn = net(z[part].to(self.device), None if labels is None else labels[part].to(self.device))
            images.append(drawn.float().add(1).mul(127.5).round().clamp(0, 255).byte().cpu())
        return torch.cat(images)

    def _standing(self) -> nn.Module:
        """The judged generator with BatchNorm statistics of its own, so that an image does not depend on its batch."""
        net = copy.deepcopy(self.generator.judged())
        for norm in (module for module in net.modules() if isinstance(module, _BatchNorm)):
            norm.reset_running_stats()
            norm.momentum = None  # the plain mean over batches
            norm.train()
        chance = dice(self.seed, "standing")
        for _ in range(STANDING):
            net(*self._draw(self.settings.batch // parallel.world(), chance))
        return net.eval()

    def judge(self, stream: Stream, *, batch: int = 512, frequencies: PerClass | None = None) -> dict[str, float]:
        images, labels = self._exhibit(self.settings.measure.judge_samples, "judge", frequencies)
        found = self.judged_by.scalars(images, labels, stream, batch=batch)
        if self.conditional:
            sigma = self.spectral_norms()["sigma_gain"].amax(0)  # (K,)
            self.judged_by.warn_of_explosion(sigma.tolist())
            found["sigma_max"] = float(sigma.max())
            found |= {f"sigma:{self.data.classes[k]}": float(sigma[k]) for k in self.judged_by.traced}
        return found

    def examine(
        self, stream: Stream, groups: dict[str, list[int]], *, batch: int = 512, frequencies: PerClass | None = None
    ) -> dict[str, Any]:
        images, labels = self._exhibit(self.settings.measure.samples, "examine", frequencies)
        found = self.judged_by.table(images, labels, stream, groups, batch=batch)
        norms = self.spectral_norms() if self.conditional else {}
        return found | {name: table.tolist() for name, table in norms.items()}

    def _exhibit(self, count: int, purpose: str, frequencies: PerClass | None) -> tuple[Tensor, Tensor | None]:
        """Images to be judged, with as many of each class as can be if the labels mean something."""
        chance = dice(self.seed, purpose)
        labels = torch.arange(count) % len(self.data.classes) if self.labelled else None
        return self.sample(count, labels, generator=chance, frequencies=frequencies), labels

    @torch.no_grad()
    def spectral_norms(self) -> dict[str, Tensor]:
        """Largest singular value of every layer's grouped class gains and biases, (layers, K) each."""
        gains, biases = conditional_parameters(self.generator.judged())
        return {"sigma_gain": class_spectral_norms(gains).cpu(), "sigma_bias": class_spectral_norms(biases).cpu()}

    def state(self) -> dict[str, Any]:
        return {
            "generator": self.generator.state(),
            "discriminator": self.discriminator.state(),
            "lecam": self.lecam.state_dict(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.generator.load_state(state["generator"])
        self.discriminator.load_state(state["discriminator"])
        self.lecam.load_state_dict(state["lecam"])

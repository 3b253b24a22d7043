"""GANs: a generator draws images, a discriminator tells them from real ones; the baselines of specs 01 and 02.

``loss``, ``condition`` and ``net`` choose the paper: SNDCGAN and SNResGAN (relativistic, unconditional), cGAN, SNGAN
and BigGAN (projection), ACGAN (class logits), LSGAN (least squares), each with or without DiffAugment, LeCam and R1.
Terms that papers add to the generator's loss stack on any of them. Only ``update`` has an order: a method with another
one (the generator first, regularisers in steps of their own) composes the parts in an ``update`` of its own.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from evenhand import parallel
from evenhand.data.loader import Batch, Feed
from evenhand.data.prepared import Data
from evenhand.data.stream import Streams, needed
from evenhand.data.views.images import Pipeline
from evenhand.errors import UserError
from evenhand.measure.alarms import warn_of_explosion, warn_of_silence
from evenhand.measure.judging import Judge
from evenhand.methods.generate.class_balancing import Balance
from evenhand.methods.generate.gsr import Spectral, spectral_norms
from evenhand.methods.generate.tables import ClassBalancingSettings, GANSettings, GSRSettings, check_gan
from evenhand.methods.generate.term import Term
from evenhand.methods.protocol import Drawer, Progress
from evenhand.nets.gan import Verdict
from evenhand.pieces.diffaugment import diffaugment
from evenhand.pieces.gan_losses import LeCam, discriminator_loss, generator_loss, r1_penalty, sample_labels
from evenhand.pieces.player import Player
from evenhand.randomness import dice

LABELLED = ("projection", "acgan", "d2d-ce", "2c")  # conditions under which drawn images have labels
STANDING = 16  # batches from which the BatchNorm statistics of evaluation are taken


class GAN(Drawer):
    """Two players, and the terms of the generator's loss by name."""

    table: Any = GANSettings
    check: Any = staticmethod(check_gan)

    def __init__(
        self, settings: Any, data: Data, *, seed: int, device: torch.device, annotator: Any = None,
        classifier: Any = None,
    ) -> None:  # fmt: skip
        self.settings, self.data, self.seed, self.device = settings, data, seed, device
        self.check(settings, data, ["annotator"] * (annotator is not None) + ["classifier"] * (classifier is not None))
        if lone := [name for name, count in zip(data.classes, data.counts, strict=True) if count == 1]:
            warnings.warn(f"one training image of class {', '.join(lone[:5])}: it can only be repeated", stacklevel=2)
        self.judge = Judge(settings.measure, data, annotator, device)
        self.generator, self.discriminator = self.players()
        self.latent: int = self.generator.net.latent  # type: ignore[assignment]
        self.lecam = LeCam(start=settings.lecam_start)
        self.terms: dict[str, Term] = {}
        if settings.balance and settings.balance.trade_off:
            self.terms["balance"] = Balance(settings.balance, data, classifier, device)
        if settings.gsr and settings.gsr.strength:
            self.terms["gsr"] = Spectral(settings.gsr, data.counts, self.generator.net, device)
        self.conditional = settings.condition != "none"
        self.labelled = settings.condition in LABELLED or any(t.labelled for t in self.terms.values())
        self.step = 0
        self.noise, self.shake = dice(seed), dice(seed)

    def players(self) -> tuple[Player, Player]:
        s, data = self.settings, self.data
        draws, tells = s.net.build(data.facts.size[0], data.inputs, len(data.classes), s.condition)
        average = {"ema": s.ema or None, "ema_warm": s.ema_warm}
        return s.optim_g.player(draws.to(self.device), **average), s.optim_d.player(tells.to(self.device))

    def feeds(self, streams: Streams) -> dict[str, Feed]:
        s, count, view = self.settings, len(needed(streams, "labelled")), self.data.train_view
        if count < s.d_steps:
            raise UserError(f"{count} training images are too few for method.d_steps = {s.d_steps}; lower it")
        half = (0.5,) * self.data.inputs
        signed = Pipeline(view.steps if isinstance(view, Pipeline) else (), half, half)  # to [-1, 1], as tanh draws
        return {"labelled": Feed("labelled", s.batch * s.d_steps, (signed,), whole=True)}

    def refresh(self, at: Progress, streams: Streams) -> None:
        if at.step == 0:
            peers, drawn = streams["val" if "val" in streams else "labelled"], self.judge.settings.judge_samples
            warn_of_silence(peers, drawn, asked=self.labelled, annotated=self.judge.annotator is not None)

    def schedule(self, at: Progress) -> None:
        self.step = at.step
        self.noise = dice(self.seed, "noise", at.step)  # of the joint batch: each process takes its part
        self.shake = dice(self.seed, "shake", at.step, parallel.rank())
        if self.settings.ema:  # at 0 the copy is the net
            self.generator.ema = self.settings.ema if at.step >= self.settings.ema_start else 0.0

    def update(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        s = self.settings
        for real, labels in self.parts(batch["labelled"]):
            loss, said = self.telling_loss(real, labels)
            if s.r1 and self.step % s.r1_every == 0:
                loss = loss + self.regularise(real, labels)
            said["discriminator"] = self.improve(self.discriminator, loss)
        fakes, asked = self.generate(len(real), self.frequencies())
        loss = self.fooling_loss(fakes, asked, real, labels)
        for name, term in self.terms.items():
            value = term(fakes, asked)
            said[name], loss = value.detach(), loss + term.strength * value
        said["generator"] = self.improve(self.generator, loss)
        for term in self.terms.values():
            term.after(self.step)
        return said | {"loss": said["generator"] + said["discriminator"]}

    # the parts of a step

    def parts(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        """The real images and labels of each discriminator step; strided, so that processes share as one would."""
        for first in range(self.settings.d_steps):
            yield batch.x[first :: self.settings.d_steps], batch.y[first :: self.settings.d_steps]

    def telling_loss(self, real: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The discriminator's loss on a real batch and as many new fakes, and its mean scores."""
        s = self.settings
        with torch.no_grad():
            fakes, asked = self.generate(len(real))
        both = labels if asked is None else torch.cat([labels, asked])
        with self.discriminator.autocast():
            verdict = self._judgement(torch.cat([real, fakes]), both, learning=True)  # one pass: one BatchNorm for both
            of_real, of_fake = verdict.score.float().chunk(2)
            loss = discriminator_loss(of_real, of_fake, s.loss)
            if verdict.logits is not None:
                for logits, truth in zip(verdict.logits.float().chunk(2), both.chunk(2), strict=True):
                    loss = loss + cross_entropy(logits, truth)
            if s.lecam:
                loss = loss + s.lecam * self.lecam(of_real, of_fake)
        return loss, {"real": of_real.detach().mean(), "fake": of_fake.detach().mean()}

    def regularise(self, real: Tensor, labels: Tensor) -> Tensor:
        """The discriminator's R1 penalty, weighted for being taken every so often."""
        with self.discriminator.autocast():
            penalty = r1_penalty(lambda x: self._judgement(x, labels, learning=True).score, real)
        return self.settings.r1 * self.settings.r1_every * penalty

    def generate(self, count: int, frequencies: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Fakes in [-1, 1] and the labels asked for: evenly, or with chances ``1 / frequencies``."""
        z, labels = self._draw(count, self.noise, frequencies)
        with self.generator.autocast():
            return self.generator.net.train()(z, labels).float(), labels

    def frequencies(self) -> Tensor | None:
        """Those by which a term wants labels asked for, if one does."""
        wanted = [term.frequencies() for term in self.terms.values()]
        return next((found for found in wanted if found is not None), None)

    def fooling_loss(self, fakes: Tensor, asked: Tensor | None, real: Tensor, labels: Tensor) -> Tensor:
        """The generator's loss under the frozen discriminator; the relativistic one compares with the last reals."""
        with self.discriminator.autocast():
            verdict = self._judgement(fakes, asked)
            of_real = None
            if self.settings.loss == "relativistic":
                with torch.no_grad():
                    of_real = self._judgement(real, labels).score
            loss = generator_loss(verdict.score, self.settings.loss, of_real)
            if verdict.logits is not None and asked is not None:
                loss = loss + cross_entropy(verdict.logits.float(), asked)
        return loss

    @staticmethod
    def improve(player: Player, loss: Tensor) -> Tensor:
        """One step of one player; returns the loss for the log."""
        player.backward(loss, last=True)
        player.step()
        return loss.detach()

    def _judgement(self, images: Tensor, labels: Tensor | None, *, learning: bool = False) -> Verdict:
        net = self.discriminator.net.train().requires_grad_(learning)
        verdict: Verdict = net(self._augmented(images), labels)
        return verdict

    def _augmented(self, images: Tensor) -> Tensor:
        policy = self.settings.diffaugment
        return diffaugment(images, self.shake, policy) if policy else images

    def _draw(
        self, count: int, chance: torch.Generator, frequencies: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """This process's part of the joint batch's noise and labels."""
        mine = slice(parallel.rank() * count, (parallel.rank() + 1) * count)
        joint = parallel.world() * count
        z = torch.randn(joint, self.latent, generator=chance)[mine].to(self.device)
        if not self.conditional:
            return z, None
        return z, sample_labels(joint, len(self.data.classes), chance, frequencies=frequencies)[mine].to(self.device)

    # drawing

    @torch.no_grad()
    def sample(self, count: int, labels: Tensor | None = None, *, chance: torch.Generator, batch: int = 256) -> Tensor:
        """Images, uint8 (N, C, H, W), by the averaged generator; labels are drawn unless given."""
        if labels is not None and not self.conditional:
            raise UserError("this generator is unconditional: it draws no class on demand; draw more and select")
        draw, images = self._drawer(chance), []
        z = torch.randn(count, self.latent, generator=chance)
        if labels is None and self.conditional:
            labels = sample_labels(count, len(self.data.classes), chance, frequencies=self.frequencies())
        for start in range(0, count, batch):
            part = slice(start, start + batch)
            drawn = draw(z[part].to(self.device), None if labels is None else labels[part].to(self.device))
            images.append(drawn.float().add(1).mul(127.5).round().clamp(0, 255).byte().cpu())
        return torch.cat(images)

    def _drawer(self, chance: torch.Generator) -> Callable[[Tensor, Tensor | None], Tensor]:
        return self._standing()

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
        parallel.average_statistics(net)
        return net.eval()

    def traces(self) -> dict[str, float]:
        found, by_class = {}, self._by_class()
        if self.conditional:
            by_class["sigma"] = sigma = spectral_norms(self.generator.judged())["sigma_gain"].amax(0)  # (K,)
            warn_of_explosion(sigma.tolist(), self.data.classes)
            found["sigma_max"] = float(sigma.max())
        shown = [(k, self.data.classes[k]) for k in self.judge.traced]
        return found | {f"{key}:{name}": float(of[k]) for key, of in by_class.items() for k, name in shown}

    def details(self) -> dict[str, Any]:
        norms = spectral_norms(self.generator.judged()) if self.conditional else {}
        return {name: values.tolist() for name, values in (norms | self._by_class()).items()}

    def _by_class(self) -> dict[str, Tensor]:
        return {key: values for term in self.terms.values() for key, values in term.by_class().items()}

    def state(self) -> dict[str, Any]:
        return {
            "generator": self.generator.state(),
            "discriminator": self.discriminator.state(),
            "lecam": self.lecam.state_dict(),
            "terms": {name: term.state() for name, term in self.terms.items()},
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.generator.load_state(state["generator"])
        self.discriminator.load_state(state["discriminator"])
        self.lecam.load_state_dict(state["lecam"])
        for name, term in self.terms.items():
            term.load_state(state["terms"][name])


class ClassBalancing(GAN):
    """Spec 01: the balance term on a relativistic, unconditional GAN."""

    table = ClassBalancingSettings


class GroupSpectral(GAN):
    """Spec 02: gSR on a conditional GAN."""

    table = GSRSettings

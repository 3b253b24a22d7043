"""StyleGAN2 on a long tail, and NoisyTwins (spec 03).

Trained on rare classes, a conditional StyleGAN2 draws one image for a class (its styles w ignore z) or another class's.
NoisyTwins adds noise to the class embeddings of both players, and asks the styles of two noise draws of the same (z, y)
to agree in every dimension and to repeat themselves in none, which only z can bring about. Of either, the generator
steps first; R1 and path length are regularised now and then, in steps of their own.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from evenhand import parallel
from evenhand.data.loader import Batch
from evenhand.data.prepared import Data
from evenhand.measure.latents import z_sensitivity
from evenhand.methods.generate.gan import GAN
from evenhand.methods.generate.stylegan_tables import (
    NoisyTwinsSettings,
    StyleGANSettings,
    check_sizes,
    check_style,
    side_of,
)
from evenhand.methods.protocol import Progress
from evenhand.nets.gan import Verdict
from evenhand.pieces.gan_losses import LeCam, discriminator_loss, generator_loss, r1_penalty
from evenhand.pieces.player import Player
from evenhand.pieces.stylegan import (
    agreement,
    average_decay,
    embedding_sizes,
    in_frame,
    out_of_frame,
    path_lengths,
    path_penalty,
    truncated,
)
from evenhand.randomness import dice

MEAN_DECAY = 0.998  # of the mean style, for truncation
LATENTS = 32  # of each class, for its z-sensitivity

Part = Literal["real", "fake", "fooling"]  # of the losses: the discriminator's two, and the generator's


class StyleGAN2(GAN):
    """The baseline, and with [method.twins] NoisyTwins."""

    table: Any = StyleGANSettings
    check = staticmethod(check_style)
    truncation = 1.0

    def __init__(self, settings: Any, data: Data, *, seed: int, device: torch.device, annotator: Any = None) -> None:
        super().__init__(settings, data, seed=seed, device=device, annotator=annotator)
        self.lecam = LeCam(start=settings.lecam_start, from_zero=True)
        self.path_mean = torch.zeros((), device=self.device)
        self.grain = dice(seed)
        self.ada = settings.ada.build() if settings.ada else None
        self.twinned = bool(settings.twins and settings.twins.strength)
        nets = [self.generator.net, self.discriminator.net]
        self.noises = settings.twins.noises(nets, data.counts) if settings.twins else []

    def players(self) -> tuple[Player, Player]:
        s, data = self.settings, self.data
        side = side_of(data.facts.size[0], s.pad)
        draws, tells = (net.to(self.device) for net in s.build(side, data.inputs, len(data.classes)))
        return s.optim_g.lazy_player(draws, s.path_every, ema=0.0), s.optim_d.lazy_player(tells, s.r1_every)

    def schedule(self, at: Progress) -> None:
        s = self.settings
        self.step = at.step
        self.noise = dice(self.seed, "noise", at.step)  # of the joint batch: each process takes its part
        self.shake = dice(self.seed, "shake", at.step, parallel.rank())
        self.grain = dice(self.seed, "grain", at.step, parallel.rank())
        for player, noise in enumerate(self.noises):
            noise.generator = dice(self.seed, "embedding", player, at.step, parallel.rank())
        self.generator.ema = average_decay(self.images_a_step, at.step, s.ema_kimg, s.ema_rampup)

    @property
    def images_a_step(self) -> int:
        return min(int(self.settings.batch), sum(self.data.counts))

    def update(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        s = self.settings
        ((real, labels),) = self.parts(batch["labelled"])
        real = self.framed(real)

        with self.generator.autocast():
            ws, asked = self.styles(len(real), twins=self.twinned)
            fakes = self.synthesise(ws)
        loss = self.fooling_loss(fakes, asked, real, labels)
        said: dict[str, Tensor] = {}
        if self.twinned:
            first, second = ws[:, 0].chunk(2)  # as they left the mapping network: never mixed, one of the copies
            said |= agreement(first.detach(), second.detach())
            if self.step >= s.twins.start:
                said["twins"] = s.twins.loss(first, second)
                loss = loss + s.twins.strength * said["twins"]
        for name, term in self.terms.items():
            said[name] = term(fakes, asked)
            loss = loss + term.strength * said[name]
        said["generator"] = self.improve(self.generator, loss)
        if s.path and self.step >= s.path_start and self.step % s.path_every == 0:
            said["path"] = self.improve(self.generator, s.path_every * s.path * self.path_penalty(len(real)))
        self.generator.follow()

        loss, scores = self.telling_loss(real, labels)
        said["discriminator"] = self.improve(self.discriminator, loss)
        if s.r1 and self.step % s.r1_every == 0:
            said["r1"] = self.improve(self.discriminator, self.regularise(real, labels))
        if self.ada:
            if (self.step + 1) % s.ada.every == 0:
                self.ada.adjust()
            said["ada"] = loss.new_tensor(self.ada.p)
        said |= scores | {"loss": said["generator"] + said["discriminator"]}
        return {name: value.detach() for name, value in said.items()}

    # the parts of a step

    def framed(self, images: Tensor) -> Tensor:
        return in_frame(images, side_of(images.shape[-1], self.settings.pad))

    def styles(self, count: int, *, twins: bool = False) -> tuple[Tensor, Tensor | None]:
        """Styles for every layer (N, layers, d) and the labels asked for; twins: row i is row i + N / 2's."""
        halves = 2 if twins else 1  # drawn one after the other, so that processes share them as one would
        z, labels = self._draw(count // halves, self.noise)
        z, labels = z.repeat(halves, 1), None if labels is None else labels.repeat(halves)
        net, mixing = self._drawing(), self.settings.mixing
        ws = net.mapping(z, labels)
        if mixing and torch.rand((), generator=self.noise) < mixing:
            first = int(torch.randint(1, ws.shape[1], (), generator=self.noise))
            others = [self._draw(count // halves, self.noise)[0] for _ in range(halves)]
            mixed = net.mapping(torch.cat(others), labels)
            ws = torch.cat([ws[:, :first], mixed[:, first:]], 1)
        return ws.float(), labels

    def synthesise(self, ws: Tensor) -> Tensor:
        images: Tensor = self._drawing().synthesis(ws, self.settings.net.noise, chance=self.grain)
        return images.float()

    def telling_loss(self, real: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """As any GAN's, but real and fake apart: a minibatch standard deviation is of one kind."""
        with torch.no_grad(), self.generator.autocast():
            ws, asked = self.styles(len(real))
            self._drawing().mapping.track(parallel.gather(ws[:, :1]), MEAN_DECAY)
            fakes = self.synthesise(ws)
        with self.discriminator.autocast():
            of_real, more_of_real = self._judged(real, labels, "real", learning=True)
            of_fake, more_of_fake = self._judged(fakes, asked, "fake", learning=True)
        of_real, of_fake = of_real.float(), of_fake.float()
        if self.ada:
            self.ada.observe(of_real)
        loss = discriminator_loss(of_real, of_fake, self.settings.loss) + more_of_real + more_of_fake
        if self.settings.lecam:
            loss = loss + self.settings.lecam * self.lecam(of_real, of_fake)
        return loss, {"real": of_real.mean(), "fake": of_fake.mean()}

    def fooling_loss(self, fakes: Tensor, asked: Tensor | None, real: Tensor, labels: Tensor) -> Tensor:
        with self.discriminator.autocast():
            scores, more = self._judged(fakes, asked, "fooling")
            return generator_loss(scores, self.settings.loss) + more

    def regularise(self, real: Tensor, labels: Tensor) -> Tensor:
        """R1 on the reals, augmented anew; in float32 whatever the precision: it is a second derivative."""

        def discriminate(x: Tensor) -> Tensor:
            scores = self._judgement(x, labels, learning=True).score
            if self.ada:
                self.ada.observe(scores)
            return scores

        penalty = r1_penalty(discriminate, real)
        return self.settings.r1_every * self.settings.r1 * penalty

    def path_penalty(self, count: int) -> Tensor:
        """Mean ``(|J_w^T v| - a)^2`` of half a batch, v a random image and a the running mean of the lengths."""
        half = max(1, count // 2)
        ws, _ = self.styles(half)
        images = self.synthesise(ws)
        mine = slice(parallel.rank() * half, (parallel.rank() + 1) * half)
        shape = (parallel.world() * half, *images.shape[1:])
        probe = torch.randn(shape, generator=self.noise)[mine].to(images) / images[0, 0].numel() ** 0.5
        penalty, self.path_mean = path_penalty(path_lengths(images, ws, probe), self.path_mean)
        return penalty

    @staticmethod
    def improve(player: Player, loss: Tensor) -> Tensor:
        """One step; what the loss does not touch has a gradient of 0, so that Adam counts all of its steps alike."""
        player.backward(loss, last=True)
        for parameter in player.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        player.step(follow=False)
        return loss.detach()

    def _drawing(self) -> Any:
        return self.generator.net.train()

    def _judgement(self, images: Tensor, labels: Tensor | None, *, learning: bool = False) -> Verdict:
        net: Any = self.discriminator.net.train().requires_grad_(learning)
        return Verdict(net(self._augmented(images), labels if self.conditional else None), None)

    def _judged(
        self, images: Tensor, labels: Tensor | None, part: Part, *, learning: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Scores, and the loss beside them: of a critic that contrasts classes, on reals and in the generator's."""
        s = self.settings
        if not s.contrasts or labels is None or part == "fake":
            score = self._judgement(images, labels, learning=learning).score
            return score, score.new_zeros(())
        net: Any = self.discriminator.net.train().requires_grad_(learning)
        score, features, proxies = net.contrast(self._augmented(images), labels)
        return score, s.contrast.strength * s.contrast.loss(s.condition, features, proxies, labels)

    def _augmented(self, images: Tensor) -> Tensor:
        images = super()._augmented(images)
        return self.ada(images, self.shake) if self.ada else images

    # drawing

    @torch.no_grad()
    def sample(self, count: int, labels: Tensor | None = None, *, chance: torch.Generator, batch: int = 256) -> Tensor:
        """Images, uint8 (N, C, H, W), by the averaged generator, without noise on the class and without the frame."""
        images = super().sample(count, labels, chance=chance, batch=batch)
        return out_of_frame(images, self.data.facts.size[0])

    def _drawer(self, chance: torch.Generator) -> Any:
        """With noise as in training; truncated, to look at a class's middle, with the same for every image."""
        net, share = self.generator.judged(), self.truncation
        return truncated(net, share) if share != 1 else partial(net, noise=self.settings.net.noise, chance=chance)

    def _by_class(self) -> dict[str, Tensor]:
        found = super()._by_class()
        if self.conditional:
            found["z_sensitivity"] = self.z_sensitivity()
            found["embedding_g"] = embedding_sizes(self.generator.judged())
            found["embedding_d"] = embedding_sizes(self.discriminator.net)
        return found

    @torch.no_grad()
    def latents(self) -> tuple[Tensor, Tensor] | None:
        """Styles as they leave the averaged mapping network, without noise on the class."""
        if not self.conditional:
            return None
        net: Any = self.generator.judged()
        labels = torch.arange(len(self.data.classes)).repeat(LATENTS)
        z = torch.randn(len(labels), self.latent, generator=dice(self.seed, "latents"))
        return net.mapping(z.to(self.device), labels.to(self.device))[:, 0].cpu(), labels

    def z_sensitivity(self) -> Tensor:
        """Of each class (K,), what share of all styles' variance is due to z: 0 where one image is drawn."""
        found = self.latents()
        assert found is not None  # asked of conditional generators alone
        return z_sensitivity(*found, len(self.data.classes))

    def traces(self) -> dict[str, float]:
        return super().traces() | ({"z_sensitivity": float(self.z_sensitivity().mean())} if self.conditional else {})

    def state(self) -> dict[str, Any]:
        return super().state() | {"path_mean": self.path_mean, "ada": self.ada.state_dict() if self.ada else None}

    def load_state(self, state: dict[str, Any]) -> None:
        for player, own in (("generator", self.generator.net), ("discriminator", self.discriminator.net)):
            check_sizes(state[player]["net"], own.state_dict(), player)
        super().load_state(state)
        self.path_mean = state["path_mean"].to(self.device)
        if self.ada:
            self.ada.load_state_dict(state["ada"])


class NoisyTwins(StyleGAN2):
    """Spec 03 with the paper's values around it."""

    table = NoisyTwinsSettings

"""The public names: what may be called, with which arguments in which order, and what they are if nothing is said.

More arguments may come, with defaults, behind the promised ones or by name.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from typing import Any

import pytest

PROMISED = """
data.longtail_counts(n_max, num_classes, imbalance, kind="exp")
data.longtail_subset(labels, counts, seed)
pieces.losses.class_balanced_weights(counts, beta=0.9999)
pieces.losses.deferred_weights(counts, epoch, start, beta=0.9999)
pieces.losses.ldam_loss(logits, target, counts, *, max_margin=0.5, scale=30.0, weight=None)
pieces.losses.vs_loss(logits, target, counts, *, gamma=0.05, tau=0.75, weight=None)
pieces.losses.logit_adjusted_loss(logits, target, priors, *, tau=1.0)
pieces.losses.focal_loss(logits, target, *, gamma=1.0, weight=None)
pieces.sam.SAM(base_optimizer, rho=0.05)
measure.confusion.confusion_matrix(predicted, target, num_classes)
measure.confusion.recalls(C)
measure.confusion.coverages(C)
measure.confusion.mean_recall(C)
measure.confusion.min_recall(C)
measure.confusion.g_mean(C)
measure.confusion.h_mean(C)
measure.confusion.group_mean_recall(C, groups)
pieces.cost_sensitive.min_recall_gain(duals, priors)
pieces.cost_sensitive.coverage_gain(duals, priors)
pieces.cost_sensitive.update_min_recall_duals(duals, recalls, step)
pieces.cost_sensitive.update_coverage_duals(duals, coverages, step, floor)
pieces.cost_sensitive.hybrid_loss(logits, target, gain)
pieces.cost_sensitive.kl_mask(probs, gain, threshold)
pieces.selmix.pair_gain(metric, confusion, prototypes, head_weight, *, bias=None, keep=0.8)
pieces.selmix.pair_distribution(gain, scale)
pieces.domain.reverse_gradient(x, coefficient)
pieces.domain.cdan_features(features, probs)
pieces.domain.mcc_loss(logits, temperature=2.5)
pieces.domain.entropy_weights(probs)
pieces.vat.adversarial_direction(model, x, *, epsilon, xi, iterations=1, generator=None)
pieces.vat.vat_loss(model, x, *, epsilon, xi, iterations=1, generator=None)
pieces.submodular.vap_score(model, x, *, starts=5, epsilon=5.0, xi, iterations=1, generator=None)
pieces.submodular.submodular_select(probs, uncertainty, budget, *, alpha=0.5, beta=0.3, block=1024)
pieces.balance.balance_loss(mean_probs, frequencies)
pieces.balance.EffectiveFrequency(num_classes, forget=0.5, weight=1.0, start=1.0)
pieces.spectral.group_spectral_norm(weights, groups=None, *, iterations, state=None)
pieces.spectral.gsr_loss(gains, biases, counts, *, alpha=0.99, iterations, state=None)
pieces.twins.noise_scale(counts, sigma, alpha)
pieces.twins.twins_loss(first, second, *, off_diagonal)
nets.stylegan2.Generator(size, channels, num_classes, *, latent=512, style=512, base=32768, widest=512, mapping_layers=8)
nets.stylegan2.Discriminator(size, channels, num_classes, *, base=32768, widest=512, group=4)
nets.vit.VisionTransformer(num_classes, *, size=224, patch=16, channels=3, width=768, depth=12, heads=12, distilled=False)
pieces.selection.entropy_select(probs, budget)
pieces.selection.margin_select(probs, budget)
pieces.selection.confidence_select(probs, budget)
pieces.selection.coreset_select(features, budget, *, labelled=None)
pieces.selection.badge_select(probs, features, budget, *, generator)
pieces.selection.aada_select(probs, target_logit, budget)
pieces.selection.clue_select(probs, features, budget, *, temperature, generator)
measure.detection.average_precision(detections, truths, num_classes, *, iou=0.5, rule="area")
measure.hessian.hessian_spectrum(loss, parameters, *, steps=64, probes=4, generator=None)
measure.generative.frechet_distance(mean_a, cov_a, mean_b, cov_b)
measure.generative.fid(features_a, features_b)
measure.generative.kid(features_a, features_b)
measure.generative.precision_recall(real_features, fake_features, k=3)
run.load_recipe(path_or_name, overrides=())
run.fit(method, streams, run)
"""  # noqa: E501 - an argument by name without a value: which one is free, or it must be given


def found(name: str) -> Any:
    module, _, attribute = f"evenhand.{name}".rpartition(".")
    return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("promise", PROMISED.strip().splitlines(), ids=lambda line: line.partition("(")[0])
def test_public_names_take_what_was_promised(promise: str) -> None:
    name, _, rest = promise.partition("(")
    told = ast.parse(f"def f({rest}: ...").body[0]
    assert isinstance(told, ast.FunctionDef)
    mine = inspect.signature(found(name)).parameters
    order = [p for p in mine if mine[p].kind is not inspect.Parameter.KEYWORD_ONLY]
    promised = [a.arg for a in told.args.args]
    assert order[: len(promised)] == promised
    values: dict[str, ast.expr | None] = dict.fromkeys(promised)
    values |= dict(zip(reversed(promised), reversed(told.args.defaults), strict=False))
    values |= {a.arg: value for a, value in zip(told.args.kwonlyargs, told.args.kw_defaults, strict=True)}
    assert values.keys() <= mine.keys()
    for argument, value in values.items():
        if value is not None:
            assert mine[argument].default == ast.literal_eval(value), argument
    free = [p for p in mine.values() if p.name not in values and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    assert all(p.default is not p.empty for p in free)


def test_a_spectrum_and_a_frequency_have_their_members() -> None:
    from evenhand.measure.hessian import Spectrum

    assert {"eigenvalues", "weights", "minimum", "maximum", "trace"} <= {*dir(Spectrum), *Spectrum.__annotations__}
    frequency = {"count", "refresh", "distribution", "state_dict", "load_state_dict"}
    assert frequency <= {*dir(found("pieces.balance.EffectiveFrequency"))}

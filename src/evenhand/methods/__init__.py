"""The methods by name; a module is imported only when its method is used."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from evenhand.errors import UserError, did_you_mean

METHODS = {
    "classifier": "evenhand.methods.recognise.classifier:LongTailClassifier",
    "second-stage": "evenhand.methods.recognise.second_stage:SecondStage",
    "deit-lt": "evenhand.methods.recognise.deit_lt:DeiTLT",
    "fixmatch": "evenhand.methods.unlabelled.fixmatch:FixMatch",
    "abc": "evenhand.methods.unlabelled.abc:ABC",
    "cossl": "evenhand.methods.unlabelled.cossl:CoSSL",
    "daso": "evenhand.methods.unlabelled.daso:DASO",
    "csst": "evenhand.methods.unlabelled.csst:CSST",
    "crest": "evenhand.methods.unlabelled.crest:CReST",
    "selmix": "evenhand.methods.unlabelled.selmix:SelMix",
    "gan": "evenhand.methods.generate.gan:GAN",
    "class-balancing-gan": "evenhand.methods.generate.gan:ClassBalancing",
    "gsr-gan": "evenhand.methods.generate.gan:GroupSpectral",
    "stylegan2": "evenhand.methods.generate.stylegan:StyleGAN2",
    "noisy-twins": "evenhand.methods.generate.stylegan:NoisyTwins",
    "transitional-gan": "evenhand.methods.generate.transitional:TransitionalGAN",
    "domain-adversarial": "evenhand.methods.adapt.adversarial:DomainAdversarial",
    "sdat": "evenhand.methods.adapt.sdat:SDAT",
    "vaada": "evenhand.methods.adapt.vaada:VAADA",
    "mme": "evenhand.methods.adapt.mme:MME",
    "sdat-ablation": "evenhand.methods.adapt.sdat_ablations:SDATAblation",
    "detector": "evenhand.methods.adapt.detector:Detector",
    "da-faster": "evenhand.methods.adapt.da_faster:DAFaster",
    "mean-teacher": "evenhand.methods.adapt.mean_teacher:MeanTeacher",
}


def method_class(name: str) -> Any:
    """The class behind one of our names, or behind ``module:Class`` of a user's; ``table`` is its [method] table."""
    place = METHODS.get(name, name)
    module, _, cls = place.partition(":")
    if not cls:
        raise UserError(f"method.name = '{name}' is unknown; {did_you_mean(name, METHODS)}")
    if place == name and "" not in sys.path:
        sys.path.append("")  # a module of the user's lies where she works, which a console script does not look at
    try:
        return getattr(import_module(module), cls)
    except (ImportError, AttributeError) as error:
        raise UserError(f"method.name = '{name}' cannot be imported ({error}); is its module here?") from error

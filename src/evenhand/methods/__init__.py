"""The methods by name; a module is imported only when its method is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

METHODS = {
    "classifier": "evenhand.methods.recognise.classifier:LongTailClassifier",
    "second-stage": "evenhand.methods.recognise.second_stage:SecondStage",
    "fixmatch": "evenhand.methods.unlabelled.fixmatch:FixMatch",
    "csst": "evenhand.methods.unlabelled.csst:CSST",
    "crest": "evenhand.methods.unlabelled.crest:CReST",
    "gan": "evenhand.methods.generate.gan:GAN",
    "class-balancing-gan": "evenhand.methods.generate.class_balancing:ClassBalancing",
    "gsr-gan": "evenhand.methods.generate.gsr:GroupSpectral",
    "domain-adversarial": "evenhand.methods.adapt.adversarial:DomainAdversarial",
    "sdat": "evenhand.methods.adapt.sdat:SDAT",
}


def method_class(name: str) -> Any:
    """The class behind a name; its ``settings`` attribute is its table in a recipe."""
    module, _, cls = METHODS[name].partition(":")
    return getattr(import_module(module), cls)

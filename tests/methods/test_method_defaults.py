"""What a key left out of [method] means, table by table: every default of the recognising and self-training methods.

Those that a paper fixes stand in ``tests/recipes``, too; the others are promised by the cards and by ``evenhand show``.
"""

from __future__ import annotations

from typing import Any

import pytest

from evenhand.methods import method_class

NET: dict[str, Any] = dict.fromkeys(
    ("width", "depth", "heads", "patch", "size", "drop_path", "layer_scale", "stem_stride", "weights")
)
OPTIM: dict[str, Any] = {
    "name": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": False, "betas": [0.9, 0.999], "eps": 1e-8,
    "weight_decay": 2e-4, "no_decay": [], "schedule": "steps", "schedule_by": "epoch", "warmup": 0, "warmup_lr": 0.0,
    "min_lr": 0.0, "inverse_alpha": None, "inverse_power": 0.75, "milestones": [0.8, 0.9],
    "factors": [1.0, 1e-2, 1e-4], "rho": 0.05, "rho_relative": False, "rho_milestones": [], "rho_values": [],
    "rho_last": None, "freeze_bn": True, "sigma": 1e-4, "lpf_gamma": 1e-3, "lpf_parts": 8, "clip": None,
    "clip_apart": False, "ema": None, "ema_warm": True, "accumulate": 1, "precision": "float32", "channels_last": True,
}  # fmt: skip
SELF_TRAINING: dict[str, Any] = {
    "batch": 64, "unlabelled_ratio": 4, "unlabelled_weight": 1.0, "net": NET | {"name": "wrn28-2"},
    "optim": OPTIM | {
        "lr": 0.03, "nesterov": True, "weight_decay": 5e-4, "no_decay": ["norms"], "schedule": "fixmatch", "ema": 0.999,
    },
    "consistency": "fixmatch", "temperature": 0.4, "one_pass": True,
}  # fmt: skip
FIXMATCH = SELF_TRAINING | {
    "loss": "ce", "threshold": 0.95, "thresholds": "fixed", "align": False, "refine": "none", "refine_start": 0.4,
    "refine_every": 10,
}  # fmt: skip
DEFAULTS: dict[str, dict[str, Any]] = {
    "classifier": {
        "batch": 128, "net": NET | {"name": "resnet32"}, "optim": OPTIM,
        "auto": {"steps": 200, "shares": [5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2], "tolerance": 0.02},
        "loss": "ce", "weighting": "none", "drw_start": 0.8, "beta": 0.9999, "sampling": "instance", "repeats": None,
        "mixup": 0.0, "max_margin": 0.5, "scale": 30.0, "vs_gamma": 0.05, "vs_tau": 0.75, "la_tau": 1.0,
        "focal_gamma": 1.0, "ib_start": 0.5, "ib_scale": 1000.0,
    },
    "second-stage": {
        "rule": "crt", "batch": 128, "optim": OPTIM | {"lr": 0.05, "schedule": "cosine"}, "tau": 0.7,
        "smooth_head": 0.3, "smooth_tail": 0.0,
    },
    "deit-lt": {
        "batch": 1024, "net": NET | {"name": "vit-b16"},
        "optim": OPTIM | {
            "name": "adamw", "lr": 5e-4, "weight_decay": 0.05, "no_decay": ["norms", "biases", "tokens", "positions"],
            "schedule": "cosine", "schedule_by": "step", "warmup": 5, "warmup_lr": 1e-6, "min_lr": 1e-5,
        },
        "distil": "hard", "alpha": 0.5, "temperature": 1.0, "teacher_view": "same", "teacher_statistics": "own",
        "teacher_antialias": False, "weighting": "drw", "drw_start": 0.9, "beta": 0.9999, "mixup": 0.8, "cutmix": 1.0,
        "switch": 0.5, "smoothing": 0.1, "mix": True, "mix_late": False, "repeats": 3, "loss": "ce",
    },
    "fixmatch": FIXMATCH,
    "abc": FIXMATCH,
    "cossl": FIXMATCH | {"least_kept": 0.6},
    "daso": FIXMATCH | {"proto_temperature": 0.05, "dist_temperature": 0.3, "alignment": 1.0, "momentum": 0.99},
    "crest": FIXMATCH | {"generations": 6, "alpha": 1 / 3, "align_last": 0.5},
    "csst": SELF_TRAINING | {
        "objective": "min-recall", "step": 0.25, "feedback_every": 32, "feedback_parts": 1, "mask": "kl",
        "threshold": 0.05, "confidence": 0.95, "floor": None, "tail": 0.1, "balanced_gain": False, "beta": 1.0,
        "gain": [],
    },
    "selmix": {
        "objective": "mean-recall", "floors": "none", "floor": None, "policy": "selmix", "scale": 10.0,
        "relative": True, "explore": "released", "legacy": False, "smoothing": 1.0, "sharpness": 40.0, "cap": 100.0,
        "tolerance": 0.01, "memory": False, "step": 100.0, "tail": 0.1, "mix": "features", "least_kept": 0.6,
        "partners": "auto", "cycle": 50, "pseudo_every": 1, "flip_val": False, "early_stop": False, "fidelity": 16,
        "batch": 64, "backbone_factor": 0.1, "freeze_backbone": False,
        "optim": OPTIM | {
            "lr": 3e-4, "momentum": 0.0, "weight_decay": 5e-4, "no_decay": ["biases"], "schedule": "cosine",
            "schedule_by": "step",
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_key_left_out_means_this(name: str) -> None:
    assert method_class(name).table(name=name).model_dump() == {"name": name} | DEFAULTS[name]

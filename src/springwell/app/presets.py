"""The table of presets. A preset is a :class:`Config`; every field can be overridden on the command line.

``-t6`` and ``-t1k`` are the paper's two settings (Sec. 4 and App. B, with its N, beta_1, batch and iterations), ``-ladder`` is
the adapted one: equal steps in log-SNR and Metropolis-tested chains whose steps follow their acceptance and that start at a
denoised guess; of MNIST and Fashion-MNIST, where FID chose it, six times as many levels, the guess alone and a U-Net.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from springwell.app.config import Config, ImageConfig, NetworkConfig, SamplerConfig, ScheduleConfig, TrainingConfig
from springwell.errors import UserError

_TOY = Config(
    data="checkerboard",
    schedule=ScheduleConfig(schedule="sigmas", sigmas=(0.6, 0.7, 0.8, 0.95), initial_noise=0.05),
    network=NetworkConfig(width=64, depth=3, num_features=128, bandwidths=(1.5, 8.0)),
    sampler=SamplerConfig(num_steps=5, sample_steps=30, jump_proposals=4, sample_jump_proposals=32),
    training=TrainingConfig(iterations=2200),
)

_PAPER = Config(
    data="cifar10",
    schedule=ScheduleConfig(schedule="t6", num_levels=6),
    network=NetworkConfig(network="resnet", num_blocks=8, base_precision=0.0, output_scale="step"),
    sampler=SamplerConfig(
        kernel="langevin",
        num_steps=30,
        sample_steps=None,
        step_size="authors",
        target_acceptance=None,
        chain_start="noisy",
        noise_scale=0.99,
    ),
    training=TrainingConfig(
        iterations=240_000,
        batch=256,
        lr=1e-4,
        lr_decay="constant",
        beta2=0.999,
        warmup=1000,
        clip=None,
        ema=0.999,
        log_every=100,
        checkpoint_every=1000,
        preview_every=5000,
        fid_every=15_000,
    ),
    images=ImageConfig(flip=True),
)
_SIZE_64 = (1, 2, 2, 2, 4)
_SIZE_128 = (1, 2, 2, 2, 4, 4)


def _with(base: Config, data: str | None = None, objective: Any = None, **sections: dict[str, Any]) -> Config:
    """``base`` with other values, given by section."""
    changed = {name: replace(getattr(base, name), **values) for name, values in sections.items()}
    return replace(base, data=data or base.data, objective=objective or base.objective, **changed)


def _paper(
    data: str, num_blocks: int, beta1: float, batch: int, iterations: int, multipliers: tuple[int, ...] = (1, 2, 2, 2)
) -> Config:
    """A row of the paper's table."""
    return _with(
        _PAPER,
        data,
        network={"num_blocks": num_blocks, "multipliers": multipliers},
        training={"beta1": beta1, "batch": batch, "iterations": iterations},
        images={"image_size": {4: None, 5: 64, 6: 128}[len(multipliers)]},
    )


_T1K = _with(
    _PAPER,
    schedule={"schedule": "linear", "num_levels": 1000},
    network={"output_scale": "learned"},
    sampler={"num_steps": 0, "noise_scale": 1.0},
)

_LADDER = _with(
    _PAPER,
    schedule={"schedule": "log-snr", "num_levels": 12, "log_snr": (7.0, -5.0)},
    network={"num_blocks": 2, "output_scale": "learned", "base_precision": 1.0},
    sampler={
        "kernel": "mala",
        "num_steps": 2,
        "sample_steps": 6,
        "step_size": "fraction",
        "step_fraction": 0.4,
        "target_acceptance": 0.6,
        "chain_start": "denoised",
        "noise_scale": 1.0,
        "denoise": True,
    },
    training={"lr": 3e-4, "lr_decay": "cosine", "beta2": 0.99, "warmup": 100, "clip": 20.0},
)


_FINE = _with(
    _LADDER,
    schedule={"num_levels": 72},
    network={"network": "unet", "dense_units": 256, "output_scale": "variance"},
    sampler={"num_steps": 0, "sample_steps": 0},
)


def _small(base: Config, data: str, **training: Any) -> Config:
    """``base`` at a size that a CPU trains."""
    network = {"width": 32, "multipliers": (1, 2), "num_blocks": 1}
    if data != "digits":
        network |= {"num_blocks": 1 if base.network.network == "unet" else 2, "unshuffle": 2}
    often = {"lr": 3e-3, "warmup": 100, "log_every": 50, "checkpoint_every": 500, "preview_every": 500, "fid_every": 0}
    return _with(base, data, network=network, training={**often, **training}, images={"flip": False})


PRESETS: dict[str, Config] = {
    **{
        name: replace(_TOY, data=name)
        for name in ("checkerboard", "eight_gaussians", "rings", "two_moons", "pinwheel", "two_spirals")
    },
    "cifar10-t6": _paper("cifar10", 8, 0.9, 256, 240_000),
    "celeba-t6": _paper("celeba", 6, 0.5, 128, 880_000, _SIZE_64),
    "lsun-church64-t6": _paper("lsun/church_outdoor", 2, 0.9, 128, 960_000, _SIZE_64),
    "lsun-bedroom64-t6": _paper("lsun/bedroom", 2, 0.9, 128, 760_000, _SIZE_64),
    "lsun-church128-t6": _paper("lsun/church_outdoor", 2, 0.5, 64, 840_000, _SIZE_128),
    "lsun-bedroom128-t6": _paper("lsun/bedroom", 5, 0.5, 64, 580_000, _SIZE_128),
    "cifar10-t6-k10": _with(_PAPER, sampler={"num_steps": 10}),
    "cifar10-t6-k50": _with(_PAPER, sampler={"num_steps": 50}),
    "cifar10-t1": _with(_PAPER, objective="marginal", schedule={"schedule": "marginal"}, sampler={"num_steps": 180}),
    "cifar10-t1k": _T1K,
    "cifar10-t1k-dsm": _with(_T1K, objective="dsm"),
    "cifar10-ladder": _LADDER,
    "celeba-ladder": _with(
        _LADDER, "celeba", network={"multipliers": _SIZE_64}, training={"batch": 128}, images={"image_size": 64}
    ),
    "digits-t6": _small(_PAPER, "digits", batch=64, iterations=2300, lr=1e-3, lr_decay="cosine", ema=0.99),
    "digits-t1k": _with(
        _small(_T1K, "digits", batch=128, iterations=2500, lr=2e-3, lr_decay="cosine", ema=0.995), images={"dequantise": True}
    ),
    "digits": _with(_small(_LADDER, "digits", batch=32, iterations=4000, ema=0.995), images={"dequantise": True}),
    "mnist-t6": _small(_PAPER, "mnist", batch=64, iterations=6000, lr=1e-3, lr_decay="cosine"),
    "mnist": _small(_FINE, "mnist", batch=16, iterations=25_000, lr=4e-3, preview_every=2000),
    "fashion-mnist": _small(_FINE, "fashion-mnist", batch=16, iterations=25_000, lr=4e-3, preview_every=2000),
    "fashion-mnist-t1k": _small(_T1K, "fashion-mnist", batch=128, iterations=20_000, lr=2e-3, lr_decay="cosine"),
}


def preset(name: str) -> Config:
    if name not in PRESETS:
        raise UserError(f"preset '{name}': unknown; choose {', '.join(PRESETS)}")
    return PRESETS[name]

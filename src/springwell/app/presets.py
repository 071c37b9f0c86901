"""The table of presets. A preset is a :class:`Config`; every field can be overridden on the command line.

The plain name of a data set is the recommended recipe. ``-t6``, ``-t1k`` and their variants are the paper's settings (Sec. 4
and App. B, with its N, beta_1, batch and iterations). ``-ladder`` is twelve levels of equal steps in log-SNR with
Metropolis-tested chains, whose steps follow their acceptance and which start at a denoised guess. ``digits`` is that ladder
too. The other recommended recipes for images have six times as many levels, the guess alone and a U-Net: on MNIST that had the
lowest KID of the recipes that were tried.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from springwell.app.config import Config, MLPConfig, SigmasConfig, did_you_mean, with_fields
from springwell.errors import UserError
from springwell.training.options import TrainingOptions


class Preset(NamedTuple):
    """A row of the table.

    Attributes:
        config: The recipe.
        about: A description in one sentence.
        minutes: Minutes of training on one CPU core, or None if unknown.
        begins_with: The preset whose finished model this training is to begin with (--init-from), or nothing.
    """

    config: Config
    about: str
    minutes: float | None = None
    begins_with: str = ""


_TOY = with_fields(
    Config(
        schedule=SigmasConfig(sigmas=(0.6, 0.7, 0.8, 0.95), initial_noise=0.05),
        network=MLPConfig(width=64, depth=3, num_features=128, bandwidths=(1.5, 8.0)),
        training=TrainingOptions(iterations=2200),
    ),
    num_steps=5,
    sample_steps=30,
    jump_proposals=4,
    sample_jump_proposals=32,
)

_TOYS = {
    "checkerboard": "Eight squares in the plane",
    "eight_gaussians": "Eight Gaussians on a circle",
    "rings": "Four concentric rings",
    "two_moons": "Two interleaved half circles",
    "pinwheel": "Five bent arms",
    "two_spirals": "Two intertwined spirals",
}

# The classifier is to keep f low where no data are; Adam's long memory and no clipping are to leave rare large targets |eps|^2
# their weight, since log Z depends on their mean. The three were chosen together, not one by one.
_PLANE = with_fields(
    _TOY,
    objective="normalised",
    total_weight=0.0,
    classifier_weight=1.0,
    network="residual-mlp",
    width=128,
    depth=2,
    num_features=128,
    bandwidths=(1.5, 6.0),
    schedule="log-snr",
    num_levels=24,
    log_snr=(6.0, -6.0),
    kernel="none",
    start="ancestral",
    iterations=2000,
    lr=4e-3,
    beta2=0.999,
    clip=None,
)

# What the authors' optimiser does, and what ours does elsewhere.
AUTHORS: dict[str, Any] = {"adam_eps": 1e-7, "idle_start": True, "ema_warmup": False}
OURS: dict[str, Any] = {"adam_eps": 1e-8, "idle_start": False, "ema_warmup": True}

_T6 = with_fields(
    Config(data="cifar10"),
    schedule="t6",
    network="resnet",
    num_blocks=8,
    base_precision=0.0,
    output_scale="step",
    kernel="langevin",
    num_steps=30,
    sample_steps=None,
    step_fraction=None,
    start="noisy",
    noise_scale=0.99,
    iterations=240_000,
    batch=256,
    lr=1e-4,
    lr_decay="constant",
    beta2=0.999,
    warmup=1000,
    clip=None,
    ema=0.999,
    **AUTHORS,
    log_every=100,
    checkpoint_every=1000,
    preview_every=5000,
    fid_every=15_000,
    flip=True,
)
_SIZE_64 = {"multipliers": (1, 2, 2, 2, 4), "image_size": 64}
_SIZE_128 = {"multipliers": (1, 2, 2, 2, 4, 4), "image_size": 128}

_T1K = with_fields(_T6, schedule="linear", num_levels=1000, output_scale="learned", kernel="none", start="noisy")

_LADDER = with_fields(
    _T6,
    schedule="log-snr",
    num_levels=12,
    log_snr=(7.0, -5.0),
    num_blocks=2,
    output_scale="learned",
    base_precision=1.0,
    kernel="mala",
    num_steps=2,
    sample_steps=6,
    step_fraction=0.4,
    target_acceptance=0.6,
    start="denoised",
    denoise=True,
    lr=3e-4,
    lr_decay="cosine",
    beta2=0.99,
    warmup=100,
    clip=20.0,
    **OURS,
)

_FINE = with_fields(
    _LADDER, num_levels=72, network="unet", dense_units=256, output_scale="variance", kernel="none", start="denoised"
)


def _small(base: Config, data: str, **values: Any) -> Config:
    """``base`` at a size that a CPU trains."""
    network: dict[str, Any] = {"width": 32, "multipliers": (1, 2), "num_blocks": 1}
    if data != "digits":
        network |= {"num_blocks": 1 if base.network.network == "unet" else 2, "unshuffle": 2}
    often = {"lr": 3e-3, "warmup": 100, "log_every": 50, "checkpoint_every": 500, "preview_every": 500, "fid_every": 0}
    return with_fields(base, data=data, flip=False, **{**network, **OURS, **often, **values})


_MNIST = _small(_FINE, "mnist", batch=16, iterations=25_000, lr=4e-3, preview_every=2000)

# Energies that are log-densities. The initial noise is half the distance of two grey values, which costs a code nothing.
_DENSITY = with_fields(
    _MNIST,
    objective="normalised",
    total_weight=0.02,
    balance=0.35,
    focus_share=0.5,
    network="residual-unet",
    dense_units=256,
    atoms=((-1.0, -1.0), (0.96, 1.0)),
    log_snr=(11.0, -6.0),
    start="ancestral",
    iterations=9_000,
    lr=2e-3,
    warmup=200,
    clip=5.0,
)
# Classes. Guidance in the plane is to be exact, and needs the density of all data as well as those of the classes.
_DIGITS = tuple("0123456789")
_CLOTHES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle-boot")
# Classes of images differ where the noise hides what they have in common.
_COARSE = {"focus_share": 0.7, "focus_sigma": 3.0}
_CLASSES = {"two_moons": 2, "rings": 4, "pinwheel": 5}
_CHURCH, _BEDROOM = "lsun/church_outdoor", "lsun/bedroom"

TABLE: dict[str, Preset] = {
    **{name: Preset(with_fields(_TOY, data=name), f"{about}.", 1) for name, about in _TOYS.items()},
    **{
        f"{name}-density": Preset(with_fields(_PLANE, data=name), f"{about}, by an energy that knows its normaliser.", 3)
        for name, about in _TOYS.items()
    },
    # Rings have long edges, beyond which f has to fall; this row takes the place of theirs above.
    "rings-density": Preset(
        with_fields(_PLANE, data="rings", classifier_weight=3.0, iterations=4000, ema=0.998),
        f"{_TOYS['rings']}, by an energy that knows its normaliser.",
        5,
    ),
    **{
        f"{name}-cond": Preset(
            with_fields(_PLANE, data=name, classes=tuple(map(str, range(num))), label_dropout=0.3),
            f"{_TOYS[name]}, a class each.",
            3,
        )
        for name, num in _CLASSES.items()
    },
    "digits": Preset(
        _small(_LADDER, "digits", batch=32, iterations=4000, ema=0.995, dequantise=True),
        "8 x 8 digits, which come with scikit-learn, by Metropolis-tested chains.",
        9,
    ),
    "mnist": Preset(_MNIST, "MNIST by 72 levels without chains and a U-Net.", 53),
    "fashion-mnist": Preset(
        with_fields(_MNIST, data="fashion-mnist"), "Fashion-MNIST by 72 levels without chains and a U-Net.", 53
    ),
    "digits-density": Preset(
        with_fields(
            _DENSITY,
            data="digits",
            num_levels=48,
            log_snr=(6.2, -4.6),
            unshuffle=1,
            dense_units=128,
            atoms=((-1.0, -1.0), (1.0, 1.0)),
            # On 784 dimensions the control variate made training diverge.
            control_limit=1.0,
            focus_share=0.3,
            batch=32,
            iterations=5000,
            weight_decay=0.02,
            dropout=0.1,
            ema=0.998,
            preview_every=500,
        ),
        "8 x 8 digits by an energy that knows its normaliser, for densities.",
        9,
    ),
    "mnist-density-start": Preset(
        _DENSITY, "MNIST by an energy that knows its normaliser: what mnist-density begins from.", 22
    ),
    "mnist-density": Preset(
        with_fields(_DENSITY, iterations=15_000, lr=1e-3),
        "MNIST by an energy that knows its normaliser, for densities: with --init-from a finished mnist-density-start.",
        43,
        "mnist-density-start",
    ),
    "fashion-mnist-density": Preset(
        with_fields(_DENSITY, data="fashion-mnist", atoms=((-1.0, -1.0),)),
        "Fashion-MNIST by an energy that knows its normaliser, for densities.",
        22,
    ),
    "mnist-cond": Preset(
        with_fields(_DENSITY, classes=_DIGITS, **_COARSE, iterations=40_000, ema=0.9995),
        "MNIST by a density for every digit, and one for all, in one network: with --init-from mnist-density.",
        70,
        "mnist-density",
    ),
    "fashion-mnist-cond": Preset(
        with_fields(
            _DENSITY,
            data="fashion-mnist",
            atoms=((-1.0, -1.0),),
            classes=_CLOTHES,
            **_COARSE,
            iterations=30_000,
            ema=0.9995,
        ),
        "Fashion-MNIST by a density for every class, and one for all, in one network.",
        50,
    ),
    "cifar10": Preset(with_fields(_FINE, batch=128), "CIFAR-10 by the recipe of mnist, on a U-Net for an accelerator."),
    "celeba": Preset(
        with_fields(_FINE, data="celeba", batch=64, **_SIZE_64),
        "CelebA at 64 x 64 by the recipe of mnist, on a U-Net for an accelerator.",
    ),
    "cifar10-ladder": Preset(_LADDER, "CIFAR-10 by twelve levels with Metropolis-tested chains."),
    "celeba-ladder": Preset(
        with_fields(_LADDER, data="celeba", batch=128, **_SIZE_64),
        "CelebA at 64 x 64 by twelve levels with Metropolis-tested chains.",
    ),
    "cifar10-t6": Preset(_T6, "The paper's CIFAR-10, T = 6 and K = 30."),
    "celeba-t6": Preset(
        with_fields(_T6, data="celeba", num_blocks=6, beta1=0.5, batch=128, iterations=880_000, **_SIZE_64),
        "The paper's CelebA at 64 x 64.",
    ),
    "lsun-church64-t6": Preset(
        with_fields(_T6, data=_CHURCH, num_blocks=2, batch=128, iterations=960_000, **_SIZE_64),
        "The paper's LSUN churches at 64 x 64.",
    ),
    "lsun-bedroom64-t6": Preset(
        with_fields(_T6, data=_BEDROOM, num_blocks=2, batch=128, iterations=760_000, **_SIZE_64),
        "The paper's LSUN bedrooms at 64 x 64.",
    ),
    "lsun-church128-t6": Preset(
        with_fields(_T6, data=_CHURCH, num_blocks=2, beta1=0.5, batch=64, iterations=840_000, **_SIZE_128),
        "The paper's LSUN churches at 128 x 128.",
    ),
    "lsun-bedroom128-t6": Preset(
        with_fields(_T6, data=_BEDROOM, num_blocks=5, beta1=0.5, batch=64, iterations=580_000, **_SIZE_128),
        "The paper's LSUN bedrooms at 128 x 128.",
    ),
    "cifar10-t6-k10": Preset(with_fields(_T6, num_steps=10), "The paper's ablation with K = 10."),
    "cifar10-t6-k50": Preset(with_fields(_T6, num_steps=50), "The paper's ablation with K = 50."),
    "cifar10-t1": Preset(
        with_fields(_T6, objective="marginal", schedule="marginal", num_steps=180),
        "The paper's ablation with one level, K = 180 and no springs.",
    ),
    "cifar10-t1k": Preset(with_fields(_T1K, dequantise=True), "The paper's CIFAR-10, T = 1000 without chains."),
    "cifar10-t1k-dsm": Preset(
        with_fields(_T1K, objective="dsm", dsm_target="sample"), "The paper's ablation: T = 1000 by denoising score matching."
    ),
    "digits-t6": Preset(
        _small(_T6, "digits", batch=64, iterations=4600, lr=1e-3, lr_decay="cosine", warmup=1000, **AUTHORS),
        "8 x 8 digits by the paper's T = 6 and K = 30.",
        60,
    ),
    "digits-t1k": Preset(
        _small(_T1K, "digits", batch=128, iterations=2500, lr=2e-3, lr_decay="cosine", ema=0.995, dequantise=True),
        "8 x 8 digits by the paper's T = 1000 without chains.",
        8,
    ),
    "mnist-t6": Preset(
        _small(_T6, "mnist", batch=64, iterations=6000, lr=1e-3, lr_decay="cosine", warmup=1000, **AUTHORS),
        "MNIST by the paper's T = 6 and K = 30.",
    ),
    "fashion-mnist-t1k": Preset(
        _small(_T1K, "fashion-mnist", batch=128, iterations=20_000, lr=2e-3, lr_decay="cosine"),
        "Fashion-MNIST by the paper's T = 1000 without chains.",
    ),
}
PRESETS: dict[str, Config] = {name: row.config for name, row in TABLE.items()}
SOME = "checkerboard, digits, mnist, fashion-mnist, table or another that `springwell presets` lists"


def preset(name: str) -> Config:
    """Returns the configuration of a preset, such as ``checkerboard`` or ``mnist``. ``PRESETS`` holds all of them by name.

    Examples:
        >>> sw.preset("checkerboard").training.iterations
        2200
    """
    if name == "table":
        raise UserError("preset 'table': is one of the command line; in Python, use springwell.sklearn.EnergyDensity().fit(X)")
    if name not in PRESETS:
        raise UserError(f"preset '{name}': unknown{did_you_mean(name, [*PRESETS, 'table']) or f'; choose {SOME}'}")
    return PRESETS[name]


def recipe_for(event_shape: tuple[int, ...]) -> Config:
    """Returns the default recipe for samples of a shape: (D,) for vectors, or (C, H, W) for images."""
    if len(event_shape) == 1:
        # Jumps between modes pay in few dimensions alone.
        return _TOY if event_shape[0] <= 3 else with_fields(_TOY, jump_proposals=0, sample_jump_proposals=None)
    if len(event_shape) != 3:
        raise UserError(f"data: have the shape {list(event_shape)} each; give vectors [N, D] or images [N, C, H, W]")
    return PRESETS["digits" if max(event_shape[1:]) <= 16 else "mnist"]

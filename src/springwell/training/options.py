"""The settings of the training loop. The command line shows these docstrings as help; it starts at once, so no torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

# More iterations than anybody has; streams of noise are numbered beyond it.
Count = Annotated[int, Meta(ge=1, le=10**9)]
CountOrZero = Annotated[int, Meta(ge=0, le=10**9)]
Share = Annotated[float, Meta(ge=0, lt=1)]


@dataclass(frozen=True)
class TrainingOptions:
    """Optimisation."""

    iterations: Count = 2500
    """Number of optimiser steps."""
    batch: Annotated[int, Meta(ge=1, le=10_000_000)] = 512
    """Number of samples per step, over all processes together."""
    lr: Annotated[float, Meta(gt=0, le=1)] = 1e-2
    """Learning rate of Adam after warm-up."""
    lr_decay: Literal["constant", "cosine"] = "cosine"
    """Learning rate after warm-up: constant, or falling to 0 along a half cosine."""
    beta1: Share = 0.9
    """Adam's beta_1."""
    beta2: Share = 0.99
    """Adam's beta_2."""
    adam_eps: Annotated[float, Meta(gt=0, le=1)] = 1e-8
    """Adam's epsilon."""
    warmup: CountOrZero = 100
    """Number of iterations over which the learning rate rises from 0."""
    idle_start: bool = False
    """Start with a learning rate of 0 in the first iteration, as the authors' code does, instead of one step above 0."""
    clip: Annotated[float, Meta(gt=0, le=1e9)] | None = 20.0
    """Clip the gradient's norm at this value. None: do not clip."""
    weight_decay: Annotated[float, Meta(ge=0)] = 0.0
    """Weight decay of AdamW, for matrices and filters: each step multiplies them by 1 - lr * weight_decay. It stabilises a
    unet, which has no spectral norms."""
    ema: Share = 0.995
    """Decay of the exponential moving average of the weights. The averaged weights are the model that is sampled and
    measured."""
    ema_warmup: bool = True
    """Let the average forget faster in the first iterations, so that it does not remember the untrained weights for long."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    """Seed of everything random in the run."""
    log_every: Count = 50
    """Number of iterations between lines of metrics.jsonl."""
    checkpoint_every: Count = 500
    """Number of iterations between checkpoints."""
    preview_every: CountOrZero = 1000
    """Number of iterations between preview pictures. 0: no previews."""
    fid_every: CountOrZero = 0
    """Number of iterations between measurements of the FID of images, which are written to fid.jsonl. 0: no measurements."""
    fid_samples: Annotated[int, Meta(ge=20, le=1_000_000)] = 2500
    """Number of samples for each FID measured in training. The paper's 2500 are enough for a curve, but too few for an FID to
    report."""
    keep: Count = 2
    """Number of checkpoints to keep."""
    on_divergence: Literal["stop", "rollback"] = "rollback"
    """What to do when training diverges. rollback: return to a good checkpoint and continue with other noise and a lower
    learning rate (0.5, 0.1 and 0.01 of it), at most three times. stop: stop at once. A diverged state never overwrites a
    checkpoint."""
    accumulate: Count = 1
    """Number of parts into which a batch is divided to save memory. Gradients are summed before each optimiser step."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of convolutions and products. The energy head, springs and log-densities are always float32."""
    compile: bool = False
    """Compile the network with torch.compile."""
    tensorboard: bool = False
    """Also write TensorBoard events (needs the tensorboard extra)."""

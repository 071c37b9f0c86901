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
    """Optimiser steps."""
    batch: Annotated[int, Meta(ge=1, le=10_000_000)] = 512
    """Samples per step, over all processes together."""
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
    """Iterations over which the learning rate rises from 0."""
    idle_start: bool = False
    """Let the learning rate of the first iteration be 0, as the authors' code does, and not one step above it."""
    clip: Annotated[float, Meta(gt=0, le=1e9)] | None = 20.0
    """Clip the gradient's norm at this value. None: do not clip."""
    weight_decay: Annotated[float, Meta(ge=0)] = 0.0
    """Share of every matrix and filter that is taken off per step, times the learning rate. It steadies a unet, which has no
    spectral norms."""
    ema: Share = 0.995
    """Decay of the exponential moving average of the weights, which is the model that is sampled and measured."""
    ema_warmup: bool = True
    """Let the average forget faster in the first iterations, so that it does not remember the untrained weights for long."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    """Everything random follows from it."""
    log_every: Count = 50
    """Iterations between lines of metrics.jsonl."""
    checkpoint_every: Count = 500
    """Iterations between checkpoints."""
    preview_every: CountOrZero = 1000
    """Iterations between preview pictures. 0: none."""
    fid_every: CountOrZero = 0
    """Iterations between measurements of the FID, of images; they go to fid.jsonl. 0: none."""
    fid_samples: Annotated[int, Meta(ge=20, le=1_000_000)] = 2500
    """Samples for each of them, the paper's number: too few for a FID to be quoted, enough for a curve."""
    keep: Count = 2
    """Number of checkpoints kept."""
    on_divergence: Literal["stop", "rollback"] = "rollback"
    """What to do when training diverges. rollback: return to a good checkpoint and go on with other noise and a lower learning
    rate (0.5, 0.1 and 0.01 of it), three times at most. stop: stop at once. A diverged state never overwrites a checkpoint."""
    accumulate: Count = 1
    """Parts into which a batch is divided to save memory; gradients are summed before each optimiser step."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of convolutions and products. The energy head, springs and log-densities are always float32."""
    compile: bool = False
    """Compile the network with torch.compile."""
    tensorboard: bool = False
    """Also write TensorBoard events (needs the tensorboard extra)."""

"""The settings of the training loop. The command line shows these docstrings as help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TrainingOptions:
    """How a model is trained."""

    iterations: int = 2500
    """Optimiser steps."""
    batch: int = 512
    """Samples per step, over all processes together."""
    lr: float = 1e-2
    """Learning rate of Adam after warm-up."""
    lr_decay: Literal["constant", "cosine"] = "cosine"
    """Learning rate after warm-up: constant, or falling to 0 along a half cosine."""
    beta1: float = 0.9
    """Adam's beta_1."""
    beta2: float = 0.99
    """Adam's beta_2."""
    warmup: int = 100
    """Iterations over which the learning rate rises from 0."""
    clip: float | None = 20.0
    """Clip the gradient's norm at this value. None: do not clip."""
    weight_decay: float = 0.0
    """Share of every matrix and filter that is taken off per step, times the learning rate. It steadies a unet, which has no
    spectral norms."""
    ema: float = 0.995
    """Decay of the exponential moving average of the weights, which is the model that is sampled and measured."""
    seed: int = 0
    """Everything random follows from it."""
    log_every: int = 50
    """Iterations between lines of metrics.jsonl."""
    checkpoint_every: int = 500
    """Iterations between checkpoints."""
    preview_every: int = 1000
    """Iterations between preview pictures. 0: none."""
    fid_every: int = 0
    """Iterations between measurements of the FID, of images; they go to fid.jsonl. 0: none."""
    fid_samples: int = 2500
    """Samples for each of them, the paper's number: too few for a FID to be quoted, enough for a curve."""
    keep: int = 2
    """Number of checkpoints kept."""
    on_divergence: Literal["stop", "rollback"] = "rollback"
    """What to do when training diverges. rollback: return to a good checkpoint and go on with other noise and a lower learning
    rate (0.5, 0.1 and 0.01 of it), three times at most; stop: stop at once. A diverged state never overwrites a checkpoint."""
    accumulate: int = 1
    """Parts into which a batch is divided to save memory; gradients are summed before each optimiser step."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Of the network's convolutions and products. The energy head, springs and log-densities are always float32."""
    compile: bool = False
    """Compile the network with torch.compile."""
    tensorboard: bool = False
    """Also write TensorBoard events (needs the tensorboard extra)."""

"""A training iteration of the authors' TensorFlow code against one of this package.

    git clone https://github.com/ruiqigao/recovery_likelihood FOLDER
    pip install 'springwell[bench-tf]'
    python benchmarks/authors.py --authors FOLDER

Both train the paper's 32 x 32 network at T6 with the same width, N, batch and K on random images. Their iteration is
``Trainer.train_fn``, the tf.function that their training calls for chains, loss, gradient, Adam and moving average. Our
iteration is one of the real training loop. They take turns in one process with the same number of threads, and the first pair
is not counted. The script stops if the networks differ in their number of parameters.

Their code was written for TensorFlow 2.2. It runs unchanged with these substitutes around it:

- tf_keras takes the place of Keras 3, and its legacy Adam is the Adam of TensorFlow 2.2.
- Their network's ``ch``, which they fix at 128, is ``--width``.
- Modules that an iteration does not use are empty: tensorflow_addons (other normalisations), tensorflow_datasets (their data)
  and their eval_utils (Inception).
- Their setup divides the batch by the number of GPUs. This script sets the batch per device itself.

Their chain computes K + 1 gradients, because it also computes the gradient after its last step. Ours computes K.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from images import SHAPE, Clock, configuration
from springwell.app.api import train_run
from springwell.app.build import build_energy, build_schedule
from springwell.app.config import with_fields
from springwell.training.loop import Hooks

CLONE = "git clone https://github.com/ruiqigao/recovery_likelihood"
EMPTY = ("tensorflow_addons", "tensorflow_datasets", "eval_utils")


def absent(folder: Path | None) -> str | None:
    """What is missing, and how to get it."""
    if folder is None or not (folder / "train.py").exists():
        where = "no folder was given" if folder is None else f"{folder} has no train.py"
        return f"The authors' code is missing ({where}): {CLONE}, then --authors FOLDER or SPRINGWELL_AUTHORS=FOLDER"
    if find_spec("tensorflow") is None or find_spec("tf_keras") is None:
        return "TensorFlow or tf_keras is not installed: pip install 'springwell[bench-tf]'"
    return None


def authors(options: argparse.Namespace, num_levels: int, num_steps: int, images: np.ndarray) -> tuple[Callable[[], None], int]:
    """One iteration of the authors' trainer, and the number of its network's parameters."""
    # TensorFlow reads this when it is imported.
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(options.threads)
    sys.path.insert(0, str(options.authors))
    sys.modules.update({name: ModuleType(name) for name in EMPTY})
    flags = {
        "n_batch_train": options.batch,
        "num_res_blocks": options.blocks,
        "num_diffusion_timesteps": num_levels,
        "mcmc_num_steps": num_steps,
    }
    importlib.import_module("config").FLAGS(["authors", *(f"--{name}={value}" for name, value in flags.items())])
    modules: list[Any] = [importlib.import_module(name) for name in ("train_utils", "model", "train")]
    utils, model, train = modules
    utils.init_tf2(tf_eager=False)
    network = model.net_res_temb2
    model.net_res_temb2 = lambda **fields: network(**{**fields, "ch": options.width})

    hps = utils.AttrDict(utils.get_flag_dict(), img_sz=SHAPE[-1])
    trainer = train.Trainer(hps=hps)
    trainer.n_per_replica = hps.n_batch_train
    trainer.diffusion = model.RecoveryLikelihood(hps)
    trainer.diffusion.init(images.shape)
    rate = utils.LambdaLr(warmup=hps.warmup, max_lr=hps.lr, total_steps=hps.n_iters)
    trainer.opt = tf.keras.optimizers.legacy.Adam(learning_rate=rate, beta_1=hps.beta_1)
    trainer.ema = utils.Ema(decay=hps.ma_decay)
    batch = {"image": tf.constant(images, tf.int32)}

    def iteration() -> None:
        trainer.train_fn(batch)[0].numpy()

    iteration()
    return iteration, sum(int(tf.size(weight)) for weight in trainer.diffusion.trainable_variables)


class Turns(Clock):
    """A reporter that lets the other contestant go after every iteration of ours; it notes seconds and CPU seconds of both."""

    def __init__(self, other: Callable[[], None]) -> None:
        super().__init__()
        self.other = other
        self.ours: list[np.ndarray] = []
        self.theirs: list[np.ndarray] = []

    @contextmanager
    def bar(self, what: str, total: int, start: int = 0) -> Iterator[Turns]:
        self.began = now()
        yield self

    def advance(self, steps: int = 1) -> None:
        self.ours.append(now() - self.began)
        began = now()
        self.other()
        self.theirs.append(now() - began)
        self.began = now()


def now() -> np.ndarray:
    """Seconds by the clock and CPU seconds of this process."""
    return np.array([time.perf_counter(), time.process_time()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    folder = os.environ.get("SPRINGWELL_AUTHORS")
    parser.add_argument("--authors", type=Path, default=folder, help="the folder of their code; default: SPRINGWELL_AUTHORS")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=2, help="N")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if (missing := absent(options.authors)) is not None:
        print(missing)
        return
    torch.set_num_threads(options.threads)
    images = np.random.default_rng(0).integers(0, 256, (64, 32, 32, 3), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "images.npz"
        np.savez(path, images=images)
        config = with_fields(configuration(options.width, options.batch, path), num_blocks=options.blocks)
        schedule, num_steps = build_schedule(config), config.sampler.num_steps
        iteration, num_theirs = authors(options, schedule.num_levels, num_steps, images[: options.batch])
        num_ours = sum(p.numel() for p in build_energy(config, schedule, SHAPE).parameters())
        if num_ours != num_theirs:
            sys.exit(f"not the same network: {num_ours:,} parameters, theirs {num_theirs:,}")
        turns = Turns(iteration)
        train_run(config, Path(name) / "run", "cpu", turns, hooks=Hooks(stop_after=options.rounds + 1))
    print(", ".join(f"{package} {version(package)}" for package in ("torch", "tensorflow", "tf_keras")))
    print(f"width {options.width}, N = {options.blocks}, {num_ours:,} parameters in both networks")
    print(f"T = {schedule.num_levels}, K = {num_steps}, batch {options.batch}, {options.threads} thread(s)")
    print(f"medians of {options.rounds} pairs{'ours':>10}{'theirs':>10}   ours / theirs")
    ours, theirs = np.array(turns.ours[1:]), np.array(turns.theirs[1:])
    for i, what in enumerate(("seconds", "CPU seconds")):
        ratios = ours[:, i] / theirs[:, i]
        medians = f"{np.median(ours[:, i]):10.3f}{np.median(theirs[:, i]):10.3f}"
        print(f"{what:18}{medians}   {np.median(ratios):.2f} ({ratios.min():.2f} ... {ratios.max():.2f})")


if __name__ == "__main__":
    main()

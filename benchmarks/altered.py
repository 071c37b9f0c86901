"""Writes images that were made of CIFAR-10's test images, to be told from them by springwell score (docs/results/tables.md).

    python benchmarks/altered.py --data-root DIR --out altered

permuted.npz    16 blocks of 8 x 8 pixels of each image, in another order
textured.npz    the middle 8 x 8 pixels of each image, 16 times

Both are made of the 500 test images after the first 1,000, so that the first ones are images that neither contains.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from springwell.data.options import ImageOptions
from springwell.evaluation.sources import open_source

FIRST, NUM, SIDE = 1000, 500, 8


def permuted(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Images ``[N, H, W, C]`` with their blocks in another order, each its own."""
    num, height, width, channels = images.shape
    rows, columns = height // SIDE, width // SIDE
    blocks = images.reshape(num, rows, SIDE, columns, SIDE, channels).transpose(0, 1, 3, 2, 4, 5)
    blocks = blocks.reshape(num, rows * columns, SIDE, SIDE, channels)
    mixed = np.stack([image[rng.permutation(rows * columns)] for image in blocks])
    return mixed.reshape(num, rows, columns, SIDE, SIDE, channels).transpose(0, 1, 3, 2, 4, 5).reshape(images.shape)


def textured(images: np.ndarray) -> np.ndarray:
    """The middle block of images ``[N, H, W, C]``, repeated over each."""
    _, height, width, _ = images.shape
    top, left = (height - SIDE) // 2, (width - SIDE) // 2
    return np.tile(images[:, top : top + SIDE, left : left + SIDE], (1, height // SIDE, width // SIDE, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", help="where CIFAR-10 is")
    parser.add_argument("--out", type=Path, default=Path("altered"))
    options = parser.parse_args()
    source = open_source("cifar10@test", FIRST + NUM, ImageOptions(data_root=options.data_root))
    images = source.rows(FIRST, FIRST + NUM).permute(0, 2, 3, 1).numpy()
    options.out.mkdir(parents=True, exist_ok=True)
    np.savez(options.out / "permuted.npz", permuted(images, np.random.default_rng(0)))
    np.savez(options.out / "textured.npz", textured(images))


if __name__ == "__main__":
    main()

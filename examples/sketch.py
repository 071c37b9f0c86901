"""Digits like a rough sketch: the density of a class times a term of one's own.

python examples/sketch.py mnist-cond
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import springwell as sw
from springwell.applications import product
from springwell.data.pictures import grid, save_png, to_bytes

LINES = (((6, 7), (6, 20)), ((6, 20), (22, 12)))
CLASSES = ("7", "2", "3", "9")


def sketch(lines: tuple[tuple[tuple[float, float], tuple[float, float]], ...] = LINES, size: int = 28) -> Tensor:
    """A picture ``[1, 1, size, size]`` of straight strokes from (row, column) to (row, column), -1 on the ground, 1 on them."""
    place = torch.cartesian_prod(torch.arange(size), torch.arange(size)).float()
    away = []
    for start, end in lines:
        p, q = torch.tensor(start, dtype=torch.float32), torch.tensor(end, dtype=torch.float32)
        along = (((place - p) @ (q - p)) / (q - p).square().sum()).clamp(0, 1)
        away.append((place - p - along[:, None] * (q - p)).norm(dim=-1))
    return 2 * torch.exp(-0.5 * torch.stack(away).amin(0) ** 2).view(1, 1, size, size) - 1


def main(name: str = "mnist-cond", out: Path = Path("composition"), num: int = 6, sweeps: int = 2) -> Tensor:
    model, drawn = sw.load(name), sketch()
    blocks = F.avg_pool2d(drawn, 4)

    def like(x: Tensor) -> Tensor:
        """-|blocks of x - blocks of the sketch|^2 / 2 s^2: means over 4 x 4 pixels, s = 0.25."""
        return -(F.avg_pool2d(x, 4) - blocks).square().flatten(1).sum(-1) / (2 * 0.25**2)

    rows = []
    for label in CLASSES:
        one = product([model.given(label), like], sweeps=sweeps)
        samples = one.sample(num, num_steps=2)
        distance = -2 * 0.25**2 * like(samples).mean()
        print(f"{label}: mean squared distance of blocks from the sketch {float(distance):.2f}")
        rows.append(torch.cat([drawn, samples]))
    images = torch.cat(rows)
    save_png(grid(to_bytes(images), num + 1), out / "sketch.png")
    return images


if __name__ == "__main__":
    main(*sys.argv[1:2])

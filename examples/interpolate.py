"""Paths between samples of a model that ships, and the surface between four of them.

python examples/interpolate.py
"""

from pathlib import Path

import torch

import springwell as sw
from springwell.applications import interpolate
from springwell.data.pictures import grid, save_gif, save_png, to_bytes


def main(out: Path = Path("interpolation"), name: str = "fashion-mnist", num: int = 8) -> None:
    model = sw.load(name)
    rows = torch.stack([interpolate(model, pair, num) for pair in ([0, 1], [2, 3], [4, 5])])
    # The ends of a path are the samples of their seeds, bit for bit.
    assert torch.equal(rows[0, 0], model.sample(1, seed=0)[0])
    save_png(grid(to_bytes(rows.flatten(0, 1)), num), out / "paths.png")
    save_gif([grid(to_bytes(frame), len(rows)) for frame in rows.transpose(0, 1)], out / "paths.gif")
    surface = interpolate(model, [0, 1, 2, 3], num)
    save_png(grid(to_bytes(surface.flatten(0, 1)), num), out / "surface.png")


if __name__ == "__main__":
    main()

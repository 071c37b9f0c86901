"""Noisy, blurred and coarse images restored; and an operator of one's own: half of the pixels are lost, the rest is noisy.

python examples/restore.py
"""

from pathlib import Path

import torch

import springwell as sw
from springwell.applications import Draws, restore
from springwell.applications.operators import average_pool, blur, enlarged, gaussian_kernel
from springwell.data.pictures import grid, save_png, to_bytes
from springwell.noise import Noise


def main(out: Path = Path("restoration"), name: str = "mnist", num: int = 4, images: int = 3, sweeps: int = 3) -> None:
    model = sw.load(name)
    x = sw.open_data(model.metadata["name"]).held_out(Noise(0, torch.arange(images)))
    kept = (Noise(1, torch.arange(1)).uniform(*model.event_shape) < 0.5).to(x)
    tasks = {
        "denoise": (lambda u: u, 0.3),
        "superres": (average_pool(2), 0.05),
        "deblur": (blur(gaussian_kernel(1.0)), 0.05),
        "lost": (lambda u: kept * u, 0.1),
    }
    for task, (operator, noise) in tasks.items():
        clean = operator(x)
        observed = clean + noise * Noise(2, torch.arange(images)).normal(*clean.shape[1:])
        found = restore(model, observed, operator, noise, Draws(num, sweeps=sweeps))
        shown = enlarged(observed, model.event_shape)
        spread = 2 * found.std / found.std.max() - 1
        rows = torch.cat([torch.stack([x, shown, found.mean, spread], 1), found.samples], 1)
        save_png(grid(to_bytes(rows.flatten(0, 1)), rows.shape[1]), out / f"{task}.png")


if __name__ == "__main__":
    main()

"""Halves of digits filled in, with and without sweeps.

python examples/inpaint.py
"""

from pathlib import Path

import torch

import springwell as sw
from springwell.applications import Draws, inpaint
from springwell.data.pictures import grid, save_png, to_bytes
from springwell.noise import Noise


def main(out: Path = Path("inpainting"), name: str = "mnist", num: int = 5, images: int = 6) -> None:
    model = sw.load(name)
    # Images that the model was not trained on.
    x = sw.open_data(model.metadata["name"]).held_out(Noise(0, torch.arange(images)))
    hidden = torch.zeros(model.event_shape, dtype=torch.bool)
    hidden[..., x.shape[-1] // 2 :] = True
    seen = torch.where(hidden, 0.0, x)
    for sweeps in (0, 4):
        samples = inpaint(model, x, hidden, Draws(num, sweeps=sweeps))
        assert torch.equal(samples[:, 0][..., ~hidden[0]], x[..., ~hidden[0]])
        rows = torch.cat([x[:, None], seen[:, None], samples], 1)
        save_png(grid(to_bytes(rows.flatten(0, 1)), num + 2), out / f"halves-{sweeps}.png")


if __name__ == "__main__":
    main()

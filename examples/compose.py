"""The product of a trained model and a Gaussian, against its exact density.

python examples/compose.py
"""

from pathlib import Path

import torch
from torch import Tensor

import springwell as sw
from springwell.app.plots import draw_density, draw_points, new_figure, panel_grid, save_figure
from springwell.applications import Product
from springwell.data.toy import log_density
from springwell.evaluation.toy import mmd
from springwell.generate import progressive

CENTRE, VARIANCE = (0.7, -0.4), 0.5


def main(out: Path = Path("composition"), num: int = 1000, sweeps: int = 25) -> dict[str, tuple[float, float]]:
    model = sw.load("checkerboard")
    schedule, toy = model.schedule, sw.toy_data("checkerboard")
    a_0, sigma_0 = float(schedule.a_cum[0]), float(schedule.sigma_cum[0])

    def gaussian(y: Tensor, t: Tensor) -> Tensor:
        """f(y, t) of data N(CENTRE, VARIANCE I) at every level."""
        scale, a, sigma = (v[t].to(y)[:, None] for v in (schedule.scale, schedule.a_cum, schedule.sigma_cum))
        return -((y / scale - a * y.new_tensor(CENTRE)).square() / (2 * (a**2 * VARIANCE + sigma**2))).sum(-1)

    def exact(x: Tensor) -> Tensor:
        """log-density of the product at level 0 up to a constant, the data's own density in the model's place."""
        level = torch.zeros(len(x), dtype=torch.long)
        return log_density(toy, x, a_0, sigma_0) + gaussian(schedule.scale[0].to(x) * x, level)

    points = panel_grid()
    log_value = exact(points)
    # Exact draws: a node by its weight, then a place in its cell.
    random = sw.Noise(1, torch.arange(num), dtype=torch.float64)
    node = torch.searchsorted(log_value.softmax(0).cumsum(0), random.uniform())
    cell = float(points[1, 1] - points[0, 1])
    reference = points[node.clamp(max=len(points) - 1)] + cell * (random.uniform(2) - 0.5)

    figure, axes = new_figure(1, 3, 2.6)
    draw_density(axes[0, 0], log_value, title="exact product")
    result = {}
    for ax, count in zip(axes[0, 1:], (0, sweeps), strict=True):
        energy, noise = Product([model.energy_function, gaussian]), model.noise(0, torch.arange(num))
        *_, (_, x, _) = progressive(energy, schedule, model.level_sampler(5), (2,), noise, sweeps=count)
        distance, null = result[f"{count} sweeps"] = mmd(x.double(), reference)
        draw_points(ax, x, title=f"{num} samples, {count} sweeps")
        print(f"{count:>2} sweeps: MMD^2 {distance:.2e} from exact draws, null level (95 %) {null:.2e}, {num} samples each")
    save_figure(figure, out / "product.png")
    return result


if __name__ == "__main__":
    main()

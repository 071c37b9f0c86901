"""The classifier of a model that knows classes against a discriminative network of the same size, on noisy test images.

    python benchmarks/classifier.py runs/mnist-cond --num 1000 --level 47 --draws 4

The discriminative network is a plain convolutional one with about as many parameters, trained by cross-entropy on the
same clean images. Both are measured on the same held-out images with the same noise: accuracy, nll (nats) and calibration
error (ece).
"""

from __future__ import annotations

import argparse
import json

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import springwell as sw
from springwell.app.build import build_labels, config_of, open_model_data
from springwell.data.labels import Labels
from springwell.evaluation.classifier import classified, measures
from springwell.noise import Noise, Stream


class Discriminative(nn.Module):
    """Two pairs of convolutions, each halved, and a dense layer."""

    def __init__(self, channels: int, size: int, num_classes: int, width: int, units: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * width * (size // 4) ** 2, units),
            nn.ReLU(),
            nn.Linear(units, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out


def trained(labels: Labels, shape: tuple[int, ...], num_parameters: int, iterations: int, batch: int = 64) -> nn.Module:
    """A network of about ``num_parameters``, trained by cross-entropy."""
    width = 32
    units = round(num_parameters / (2 * width * (shape[1] // 4) ** 2))
    torch.manual_seed(0)
    network = Discriminative(shape[0], shape[1], len(labels.classes), width, units)
    adam = torch.optim.Adam(network.parameters(), 1e-3)
    for i in range(iterations):
        x, label = labels.sample(Noise(0, torch.arange(batch), Stream.TRAINING + i))
        known = label >= 0
        adam.zero_grad()
        F.cross_entropy(network(x[known]), label[known]).backward()
        adam.step()
    return network.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run")
    parser.add_argument("--num", type=int, default=1000)
    parser.add_argument("--level", type=int, default=0)
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 0.5, 1.0])
    options = parser.parse_args()
    model = sw.load(options.run)
    labels = build_labels(config_of(model), open_model_data(model))
    energy = model.energy_function
    assert isinstance(energy, nn.Module)
    wanted = sum(p.numel() for p in energy.parameters())
    network = trained(labels, model.event_shape, wanted, options.iterations)
    print(json.dumps({"model": wanted, "discriminative": sum(p.numel() for p in network.parameters())}), flush=True)
    for noise in options.noise:
        source = Noise(0, torch.arange(options.num), Stream.DATA)
        x, label = labels.held_out(source)
        x = x + noise * source.normal(*x.shape[1:])[: len(x)]
        with torch.no_grad():
            other = measures(network(x).double().log_softmax(-1), label)
        mine = classified(model, labels, options.num, noise, options.level, options.draws)
        print(json.dumps({"noise": noise, "model": mine, "discriminative": other}), flush=True)


if __name__ == "__main__":
    main()

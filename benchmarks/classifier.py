"""The classifier of a model that knows classes against a discriminative network of the same size, on noisy test images.

    python benchmarks/classifier.py runs/mnist-cond --num 1000
    python benchmarks/classifier.py runs/mnist-cond --samples classes.npz --iterations 3000
    python benchmarks/classifier.py planted --iterations 1000

The discriminative network is a plain convolutional one with about as many parameters, trained by cross-entropy on the
same clean images. Both are measured on the same held-out images with the same noise: accuracy, nll (nats) and calibration
error (ece). Then 5 % of the labels of training images, which the model has not seen wrong, are replaced by wrong ones, and
p(label | x) is to find them: the AUROC.

``--samples`` measures instead how many samples of every class the discriminative network takes for that class, beside its
accuracy on as many held-out images; the file is one of `springwell sample RUN --label all --out classes.npz`.

``planted`` trains a model of the 8 x 8 digits, from the weights of digits-density, with 5 % wrong labels among its training
data, and measures how well p(label | x) finds these, and the model's accuracy on held-out digits with right labels.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import springwell as sw
from springwell.app.build import build_labels, config_of, open_model_data
from springwell.data.images import scaled
from springwell.data.labels import Labels
from springwell.evaluation.classifier import classified, measures, suspects
from springwell.evaluation.scores import auroc
from springwell.noise import Noise, Stream

WRONG = 0.05


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


def wrong_labels(label: np.ndarray, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels of which a share WRONG is replaced by another one, and which those are."""
    random = np.random.default_rng(0)
    rows = random.choice(len(label), round(WRONG * len(label)), replace=False)
    changed = label.copy()
    changed[rows] = (label[rows] + random.integers(1, num_classes, len(rows))) % num_classes
    return changed, changed != label


def found(log_prob: Tensor, label: np.ndarray, wrong: np.ndarray) -> dict[str, Any]:
    """How well log p(label | x) tells wrong labels from right ones."""
    given, bad = torch.from_numpy(label), torch.from_numpy(wrong)
    score = log_prob.gather(1, given[:, None])[:, 0]
    area, error = auroc(score[~bad], score[bad])
    first = suspects(log_prob, given)[: int(bad.sum())]
    return {"wrong": int(bad.sum()), "auroc": area, "standard_error": error, "wrong_among_as_many": float(wrong[first].mean())}


def planted(iterations: int) -> None:
    """Digits whose training labels are wrong in part."""
    data = sw.open_data("digits")
    labels = data.labels()
    assert data.rows is not None
    assert labels.train is not None
    x = scaled(torch.from_numpy(data.rows.copy()))
    label, wrong = wrong_labels(labels.train, 10)
    fields: dict[str, Any] = {"classes": ("all",), "iterations": iterations, "focus_share": 0.5, "focus_sigma": 1.0}
    model = sw.train("digits-density", data=(x, label), init_from="zoo:digits-density", **fields)
    test, right = labels.held_out(Noise(0, torch.arange(299)))
    line = {"level": model.classifying_level, **found(model.classify(x), label, wrong)}
    print(json.dumps({**line, "held out": measures(model.classify(test), right)}), flush=True)


def recognised(network: nn.Module, labels: Labels, file: str) -> dict[str, Any]:
    """How many samples of classes, uint8 ``[N, H, W, C]``, the network takes for their class."""
    with np.load(file) as stored:
        x = scaled(torch.from_numpy(stored["samples"]).permute(0, 3, 1, 2))
        label = np.array([labels.classes.index(str(name)) for name in stored["labels"]])
    with torch.no_grad():
        right = network(x).argmax(-1).numpy() == label
        images, truth = labels.held_out(Noise(0, torch.arange(len(x)), Stream.DATA))
        real = float((network(images).argmax(-1) == truth).double().mean())
    by_class = {name: round(float(right[label == c].mean()), 4) for c, name in enumerate(labels.classes)}
    return {"samples": len(x), "accuracy": float(right.mean()), "by class": by_class, "accuracy on held-out images": real}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run")
    parser.add_argument("--num", type=int, default=1000)
    parser.add_argument("--level", type=int)
    parser.add_argument("--draws", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--samples")
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 0.5, 1.0])
    options = parser.parse_args()
    if options.run == "planted":
        planted(options.iterations)
        return
    model = sw.load(options.run)
    data = open_model_data(model)
    labels = build_labels(config_of(model), data)
    energy = model.energy_function
    assert isinstance(energy, nn.Module)
    wanted = sum(p.numel() for p in energy.parameters())
    network = trained(labels, model.event_shape, wanted, options.iterations)
    print(json.dumps({"model": wanted, "discriminative": sum(p.numel() for p in network.parameters())}), flush=True)
    if options.samples:
        print(json.dumps(recognised(network, labels, options.samples)), flush=True)
        return
    for noise in options.noise:
        source = Noise(0, torch.arange(options.num), Stream.DATA)
        x, label = labels.held_out(source)
        x = x + noise * source.normal(*x.shape[1:])[: len(x)]
        with torch.no_grad():
            other = measures(network(x).double().log_softmax(-1), label)
        mine = classified(model, labels, options.num, noise, options.level, options.draws)
        print(json.dumps({"noise": noise, "model": mine, "discriminative": other}), flush=True)
    assert data.rows is not None
    assert labels.train is not None
    given, wrong = wrong_labels(labels.train[: options.num], len(labels.classes))
    x = scaled(torch.from_numpy(data.rows[: options.num].copy()))
    with torch.no_grad():
        rows = {
            "model": model.classify(x, level=options.level, draws=options.draws),
            "discriminative": network(x).double().log_softmax(-1),
        }
    print(json.dumps({name: found(log_prob, given, wrong) for name, log_prob in rows.items()}), flush=True)


if __name__ == "__main__":
    main()

r"""How far samples are from images, in the features of Inception.

With features x_1 ... x_N of samples and y_1 ... y_M of reference images, their means m and covariances C (divided by N - 1):

    FID          |m_x - m_y|^2 + tr(C_x + C_y - 2 (C_x C_y)^(1/2))
    KID          unbiased MMD^2 with the kernel k(x, y) = (x . y / d + 1)^3, d = 2048; mean over 100 random subsets
    IS           exp E KL(p(c | x) || p(c)) with Inception's 1008 classes, mean and standard deviation over 10 splits
    precision    share of samples within the k-th nearest neighbour's distance, k = 3, of some reference image
    recall       share of reference images within that distance of some sample

FID falls as N and M grow and is biased upward by several points below 10,000; compare FIDs of equal counts only. KID has no
such bias. torchmetrics computes FID, KID and IS; features are float32, everything after them float64 but the distances
between neighbours.

Many processes share the images by whole batches, so that every feature is computed in the batch that a single process computes
it in, and the result is the same.

References:
    Heusel et al., "GANs trained by a two time-scale update rule converge to a local Nash equilibrium", NeurIPS 2017.
    Binkowski et al., "Demystifying MMD GANs", ICLR 2018.
    Salimans et al., "Improved techniques for training GANs", NeurIPS 2016.
    Kynkaanniemi et al., "Improved precision and recall metric for assessing generative models", NeurIPS 2019.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from importlib import import_module
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from springwell.devices import gathered, rank_and_world, shared_rows
from springwell.errors import UserError
from springwell.evaluation.sources import Images
from springwell.evaluation.weights import NAME, cache_folder
from springwell.progress import SILENT, Reporter
from springwell.store.parts import Parts, key_of

NEIGHBOURS = 3
SPLITS = 10
SUBSETS = 100
SUBSET_SIZE = 1000
ENOUGH = 10_000
_FORMAT = 2
_BLOCK = 1000


class Network(Protocol):
    """What is asked of a network of features: uint8 images ``[N, C, H, W]`` -> ``[N, num_features]``."""

    num_features: int
    preprocessing: Any
    digest: str
    fc: Tensor | None

    def __call__(self, images: Tensor) -> Tensor: ...


def features(
    images: Images,
    network: Network,
    reporter: Reporter = SILENT,
    batch: int | None = None,
    parts: Parts | None = None,
) -> Tensor:
    """Features of all images, float32 ``[N, num_features]`` on the CPU, the same in every process.

    Args:
        images: The images. Each process asks for its share of them alone.
        network: Inception.
        reporter: Receives progress updates.
        batch: Images that are computed side by side. Default: 32 on a CPU, 256 elsewhere.
        parts: Keeps what is done, from which an interrupted call with the same arguments goes on.
    """
    tensors = chain(network.parameters(), network.buffers()) if isinstance(network, nn.Module) else iter(())
    device = next((x.device for x in tensors), torch.device("cpu"))
    batch = batch or (32 if device.type == "cpu" else 256)
    # How many suit a process may differ between devices; what is gathered may not.
    together = int(gathered(torch.tensor([images.together], device=device)).min())
    share = batch * -(-together // batch)
    out = torch.empty(images.num, network.num_features)
    parts = parts or Parts()
    done = int(gathered(torch.tensor([_read_parts(parts, out)], device=device)).min())
    if done:
        reporter.say(f"features of {images.name}: {done:,} of {images.num:,} are done already")

    def compute(start: int, stop: int) -> Tensor:
        with torch.inference_mode():
            return torch.cat([network(part.to(device)) for part in images.rows(start, stop).split(batch)])

    empty = torch.zeros(share, network.num_features, device=device)
    with reporter.bar(f"features of {images.name}", images.num, done) as bar:
        for first, found in shared_rows(done, images.num, share, compute, empty):
            out[first : first + len(found)] = found
            if rank_and_world()[0] == 0:
                try:
                    parts.write(f"{first:08d}", {"features": found})
                except OSError as error:
                    reporter.warn(f"{parts.folder}: cannot be written ({error.strerror}); features will be computed again")
                    parts = Parts()
            bar.advance(len(found))
    if not bool(torch.isfinite(out).all()):
        raise UserError(f"{images.name}: the network's features are not finite; use other weights, or device='cpu'")
    return out


def _read_parts(parts: Parts, out: Tensor) -> int:
    """Fills ``out`` from the front with what an earlier call left, and returns the number of rows it filled."""
    done = 0
    while done < len(out) and (found := parts.read(f"{done:08d}")) is not None:
        rows = found.get("features")
        if rows is None or not len(rows) or done + len(rows) > len(out) or rows.shape[1:] != out.shape[1:]:
            break
        out[done : done + len(rows)] = torch.from_numpy(rows)
        done += len(rows)
    return done


def reference_features(
    images: Images, network: Network, reporter: Reporter = SILENT, batch: int | None = None, keep: bool = True
) -> Tensor:
    """As :func:`features`, from the user cache as far as they are there; with ``keep``, new ones are put there."""
    state = [_FORMAT, images.key, images.num, str(network.preprocessing), network.digest]
    name = re.sub(r"[^A-Za-z0-9]+", "-", images.name).strip("-")[-40:]
    folder = cache_folder() / "features" / f"{name}-{images.num}-{network.preprocessing}-{key_of(state)}"
    parts = Parts(folder) if images.key and (keep or folder.exists()) else None
    return features(images, network, reporter, batch, parts)


def image_metrics(
    samples: Tensor, reference: Tensor, fc: Tensor | None = None, reporter: Reporter = SILENT, seed: int = 0
) -> dict[str, Any]:
    """All metrics.

    Args:
        samples: Features ``[N, d]`` of the samples.
        reference: Features ``[M, d]`` of the reference images.
        fc: Weights of Inception's classes ``[classes, d]``; None: no Inception score.
        reporter: Receives progress updates and a warning of too few samples.
        seed: The seed that chooses the subsets for KID.

    Returns:
        Names and values with their counts; ``inception_score`` is None without ``fc``.
    """
    warn_if_few(samples, reference, reporter)
    result: dict[str, Any] = {"num_samples": len(samples), "num_reference": len(reference)}
    with reporter.bar("metrics", 4) as bar:
        result["fid"] = fid(samples, reference)
        bar.advance()
        size = min(SUBSET_SIZE, min(len(samples), len(reference)) // 2)
        mean, spread = kid(samples, reference, size, SUBSETS, seed)
        result |= {"kid": mean, "kid_std": spread, "kid_subsets": SUBSETS, "kid_subset_size": size}
        bar.advance()
        result["precision"], result["recall"] = precision_recall(samples, reference)
        result["neighbours"] = NEIGHBOURS
        bar.advance()
        scores = (None, None) if fc is None else inception_score(samples.double() @ fc.cpu().double().T)
        result["inception_score"], result["inception_score_std"] = scores
        result["inception_score_splits"] = SPLITS
        bar.advance()
    return result


def warn_if_few(samples: Tensor, reference: Tensor, reporter: Reporter) -> None:
    if (fewest := min(len(samples), len(reference))) < ENOUGH:
        reporter.warn(f"FID of {fewest:,} images is biased upward; compare it with FIDs of as many, and use {ENOUGH:,} or more")


def metric_lines(result: dict[str, Any]) -> list[str]:
    """What :func:`image_metrics` found, for people."""
    counts = f"{result['num_samples']:,} samples, {result['num_reference']:,} reference images"
    subsets = f"{result['kid_subsets']} subsets of {result['kid_subset_size']:,}"
    lines = [
        f"fid        {round(result['fid'], 2) + 0.0:.2f}   {counts}",
        f"kid        {1e3 * result['kid']:.3f} +- {1e3 * result['kid_std']:.3f} x 1e-3   mean and std over {subsets}; {counts}",
        f"precision  {result['precision']:.3f}   k = {result['neighbours']}; {counts}",
        f"recall     {result['recall']:.3f}   k = {result['neighbours']}; {counts}",
    ]
    if result["inception_score"] is None:
        return [*lines, f"is         not computed: these weights of Inception have no fc layer; use {NAME}"]
    score, spread = result["inception_score"], result["inception_score_std"]
    splits = f"mean and std over {result['inception_score_splits']} splits"
    return [*lines, f"is         {score:.2f} +- {spread:.2f}   {splits}; {result['num_samples']:,} samples"]


class _Given(nn.Module):
    """Stands for a network whose outputs are there already."""

    def __init__(self, num_features: int):
        super().__init__()
        self.num_features = num_features

    def forward(self, x: Tensor) -> Tensor:
        return x


def torchmetrics(name: str = "fid") -> Any:
    """The module of torchmetrics for one metric, or a UserError that says how to install it."""
    try:
        # Its package of all image metrics leaves these out where its own Inception is not installed.
        return import_module(f"torchmetrics.image.{name}")
    except ImportError:
        raise UserError("FID, KID and the Inception score need torchmetrics; pip install 'springwell[evaluate]'") from None


def fid(samples: Tensor, reference: Tensor) -> float:
    """Frechet distance of the Gaussians with the moments of ``[N, d]`` and ``[M, d]``."""
    metric = torchmetrics("fid").FrechetInceptionDistance(feature=_Given(samples.shape[1]), sync_on_compute=False)
    for x, real in ((samples, False), (reference, True)):
        for part in x.cpu().split(_BLOCK):
            metric.update(part.double(), real=real)
    return float(metric.compute())


def kid(samples: Tensor, reference: Tensor, size: int, subsets: int = SUBSETS, seed: int = 0) -> tuple[float, float]:
    """Mean and standard deviation of MMD^2 over random subsets of ``size`` features of each."""
    generator = torch.Generator().manual_seed(seed)
    values = []
    for _ in range(subsets):
        x, y = (z[torch.randperm(len(z), generator=generator)[:size]].double() for z in (samples.cpu(), reference.cpu()))
        values.append(torchmetrics("kid").poly_mmd(y, x))
    return float(torch.stack(values).mean()), float(torch.stack(values).std())


def inception_score(logits: Tensor, splits: int = SPLITS) -> tuple[float, float]:
    """Mean and standard deviation over consecutive splits of the score of logits ``[N, classes]``."""
    metric = torchmetrics("inception").InceptionScore
    scores = []
    # Its shuffling, which means nothing but rounding within a split, draws from the global generator.
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        torch.default_generator.manual_seed(0)
        for part in logits.cpu().double().tensor_split(splits):
            score = metric(feature=_Given(logits.shape[1]), splits=1, sync_on_compute=False)
            score.update(part)
            scores.append(score.compute()[0])
    return float(torch.stack(scores).mean()), float(torch.stack(scores).std(correction=0))


def precision_recall(samples: Tensor, reference: Tensor, neighbours: int = NEIGHBOURS) -> tuple[float, float]:
    """Shares of samples within the manifold of the reference, and of the reference within that of the samples."""
    # Distances are found from dot products, which are the more exact the nearer to 0 the features lie.
    centre = reference.mean(0)
    x, y = samples - centre, reference - centre
    return _covered(x, y, _radii(y, neighbours)), _covered(y, x, _radii(x, neighbours))


def _radii(x: Tensor, neighbours: int) -> Tensor:
    """Distances ``[N]`` to the k-th nearest of the other points."""
    # The nearest of all is the point itself.
    return torch.cat([torch.cdist(part, x).kthvalue(neighbours + 1, 1).values for part in _parts(x, len(x))])


def _covered(x: Tensor, y: Tensor, radii: Tensor) -> float:
    """Share of the points x that lie within ``radii`` of some y."""
    return float(torch.cat([(torch.cdist(part, y) <= radii).any(1) for part in _parts(x, len(y))]).double().mean())


def _parts(x: Tensor, columns: int) -> Iterator[Tensor]:
    """Rows, as many at a time as have at most 2^25 distances to ``columns`` points."""
    yield from x.split(max(1, (1 << 25) // columns))

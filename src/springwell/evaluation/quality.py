"""FID and its kin of a model: its samples against images of the data set that it was trained on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from springwell.evaluation.inception import Inception
from springwell.evaluation.metrics import features, fid, image_metrics, reference_features, warn_if_few
from springwell.evaluation.sources import MOST, Images, model_images
from springwell.integrate import Integrator
from springwell.model import Model
from springwell.progress import SILENT, Reporter
from springwell.store.parts import Parts, key_of


@dataclass(frozen=True)
class Drawn:
    """Which samples of a model are measured.

    Attributes:
        num: How many.
        seed: Their seed.
        evaluations: Gradients per sample of an integrator, in place of draws level by level.
        by_class: Whether they are drawn given their class, the same number of each.
    """

    num: int = MOST
    seed: int = 0
    evaluations: int | None = None
    by_class: bool = False


def quality(
    model: Model,
    reference: Images,
    network: Inception,
    draws: Drawn,
    reporter: Reporter = SILENT,
    parts: Path | None = None,
) -> dict[str, Any]:
    """Measures samples; all processes call it together, and each draws its share.

    Args:
        model: A model of images.
        reference: The images that samples are compared with.
        network: Inception.
        draws: Which samples.
        reporter: Receives progress updates.
        parts: A folder for what is done, from which an interrupted call goes on; whoever has the result removes it.
    """
    num, seed = draws.num, draws.seed
    drawn: list[Model] = [model.given(c) for c in model.classes or (0,)] if draws.by_class else [model]
    sampler = model.sampler if draws.evaluations is None else Integrator(draws.evaluations)
    kept = None
    if parts is not None:
        state = [*(one.fingerprint() for one in drawn), sampler.description(), model.denoise, seed, num, network.digest]
        kept = Parts(parts / key_of(state))
    samples = features(model_images(f"{num:,} samples", drawn, num, seed, sampler), network, reporter, parts=kept)
    measures = image_metrics(samples, reference_features(reference, network, reporter), network.fc, reporter)
    how: dict[str, Any] = {} if draws.evaluations is None else {"evaluations": draws.evaluations}
    if draws.by_class:
        how["by_class"] = True
    return {"reference": reference.name, "seed": seed, **how, "inception_sha256": network.digest, **measures}


def only_fid(model: Model, reference: Images, network: Inception, num: int, reporter: Reporter) -> dict[str, Any]:
    """The FID alone, as training measures it; the other measures take minutes on a CPU. Arguments as :func:`quality`'s."""
    samples = features(model_images(f"{num:,} samples", model, num, 0), network, reporter)
    known = reference_features(reference, network, reporter)
    warn_if_few(samples, known, reporter)
    measures = {"num_samples": len(samples), "num_reference": len(known), "fid": fid(samples, known)}
    return {"reference": reference.name, "seed": 0, "inception_sha256": network.digest, **measures}

"""FID and its kin of a model: its samples against images of the data set that it was trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from springwell.evaluation.inception import Inception
from springwell.evaluation.metrics import features, fid, image_metrics, reference_features, warn_if_few
from springwell.evaluation.sources import MOST, Images, model_images
from springwell.integrate import Integrator
from springwell.model import Model
from springwell.progress import SILENT, Reporter
from springwell.store.parts import Parts, key_of


def quality(
    model: Model,
    reference: Images,
    network: Inception,
    num: int = MOST,
    seed: int = 0,
    reporter: Reporter = SILENT,
    parts: Path | None = None,
    evaluations: int | None = None,
    by_class: bool = False,
) -> dict[str, Any]:
    """Measures ``num`` samples; all processes call it together, and each draws its share.

    Its nine arguments are what is measured, against what, by what, how much of it and how it is drawn.

    Args:
        model: A model of images.
        reference: The images that samples are compared with.
        network: Inception.
        num: How many samples.
        seed: The seed of the samples.
        reporter: Receives progress updates.
        parts: A folder for what is done, from which an interrupted call goes on; whoever has the result removes it.
        evaluations: Gradients per sample of an integrator, in place of draws level by level.
        by_class: Whether samples are drawn given their class, the same number of each.
    """
    drawn: list[Model] = [model.given(c) for c in model.classes or (0,)] if by_class else [model]
    sampler = model.sampler if evaluations is None else Integrator(evaluations)
    kept = None
    if parts is not None:
        state = [*(one.fingerprint() for one in drawn), sampler.description(), model.denoise, seed, num, network.digest]
        kept = Parts(parts / key_of(state))
    samples = features(model_images(f"{num:,} samples", drawn, num, seed, sampler), network, reporter, parts=kept)
    measures = image_metrics(samples, reference_features(reference, network, reporter), network.fc, reporter)
    how: dict[str, Any] = {} if evaluations is None else {"evaluations": evaluations}
    if by_class:
        how["by_class"] = True
    return {"reference": reference.name, "seed": seed, **how, "inception_sha256": network.digest, **measures}


def only_fid(model: Model, reference: Images, network: Inception, num: int, reporter: Reporter) -> dict[str, Any]:
    """The FID alone, as training measures it; the other measures take minutes on a CPU. Arguments as :func:`quality`."""
    samples = features(model_images(f"{num:,} samples", model, num, 0), network, reporter)
    known = reference_features(reference, network, reporter)
    warn_if_few(samples, known, reporter)
    measures = {"num_samples": len(samples), "num_reference": len(known), "fid": fid(samples, known)}
    return {"reference": reference.name, "seed": 0, "inception_sha256": network.digest, **measures}

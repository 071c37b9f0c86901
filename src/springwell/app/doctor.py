"""Is everything in place? Versions, device, data, write access, and a self-test whose answers are known."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, NamedTuple

import torch

import springwell
from springwell.app.api import load_folder
from springwell.data.images import image_shape
from springwell.data.options import ImageOptions
from springwell.errors import UserError
from springwell.evaluation.toy import divergences
from springwell.evaluation.weights import cache_folder, find_weights
from springwell.generate import progressive
from springwell.level import LevelSampler
from springwell.noise import Noise
from springwell.samplers import mala
from springwell.schedule import NoiseSchedule
from springwell.store import zoo

PACKAGES = ("torch", "numpy", "accelerate", "safetensors", "huggingface_hub", "scikit-learn")
EXTRAS = {"torchmetrics": "evaluate", "datasets": "hf", "lmdb": "lsun", "tensorboard": "tensorboard"}
DATA = ("digits", "mnist", "fashion-mnist", "cifar10", "celeba")
SAMPLES = 4096


class Check(NamedTuple):
    """What was looked at and what was found; ``absent`` is for things that one can do without."""

    name: str
    verdict: Literal["ok", "absent", "failed"]
    found: str


def examine(device: str, data_root: str | None = None) -> Iterator[Check]:
    """All checks, the cheap ones first; the self-test takes some seconds."""
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    yield Check("springwell", "ok", f"{springwell.__version__} on {system}")
    yield Check("packages", "ok", ", ".join(f"{name} {version(name)}" for name in PACKAGES))
    for package, extra in EXTRAS.items():
        try:
            yield Check(package, "ok", version(package))
        except PackageNotFoundError:
            yield Check(package, "absent", f"pip install 'springwell[{extra}]' if it is needed")
    yield Check("device", "ok", f"{device}, {torch.get_num_threads()} CPU threads, {torch.get_default_dtype()} by default")
    tf32 = torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
    strict = "on" if torch.are_deterministic_algorithms_enabled() else "off"
    yield Check("determinism", "ok", f"torch's deterministic algorithms {strict}, TF32 {'allowed' if tf32 else 'off'}")
    yield _try("float64", partial(_float64, device))
    yield _try("bfloat16", _bfloat16)
    for name in DATA:
        yield _try(name, partial(_data, name, ImageOptions(data_root=data_root)))
    yield _try("Inception", _inception)
    for name, folder in (("this folder", Path()), ("cache", cache_folder())):
        yield _try(name, partial(_writes, folder))
    yield _try("models that ship", _models)
    yield _try("sampling", partial(_sampling, device))
    yield _try("density", _density)


class _AbsentError(Exception):
    """Something is not there that one can do without."""


def _try(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, "ok", check())
    except _AbsentError as error:
        return Check(name, "absent", str(error))
    except Exception as error:
        # Whatever goes wrong here is what the command was asked to find.
        return Check(name, "failed", str(error).splitlines()[0] if str(error) else type(error).__name__)


def _bfloat16() -> str:
    """Multiplies in bfloat16 on the CPU, in a process of its own: virtual machines that announce AMX may lack it."""
    program = "import torch; x = torch.ones(4, 512, dtype=torch.bfloat16); torch.nn.functional.linear(x, x, x[:, 0])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if ended.returncode < 0:
        raise _AbsentError(
            "bfloat16 on the CPU stops the process; set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before --precision bf16"
        )
    if ended.returncode:
        raise RuntimeError(ended.stderr.strip().splitlines()[-1])
    return "multiplies on the CPU"


def _float64(device: str) -> str:
    third = float(torch.ones(1, dtype=torch.float64, device=device) / 3)
    if third != 1 / 3:
        raise UserError(f"1/3 is {third!r} on {device}; schedules and log-weights need float64")
    return f"as it should be on {device}"


def _data(name: str, images: ImageOptions) -> str:
    try:
        shape = image_shape(name, images)
    except UserError as error:
        what = str(error).removeprefix(f"data={name!r}: ")
        raise (_AbsentError if "not found" in what else UserError)(what) from None
    return f"images of {' x '.join(map(str, shape or ()))}"


def _inception() -> str:
    if (path := find_weights()) is None:
        raise _AbsentError("no weights; the first FID downloads them (91 MiB)")
    return str(path)


def _writes(folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".springwell-"):
        pass
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize if hasattr(os, "statvfs") else None
    return f"{folder.resolve()} can be written" + ("" if free is None else f", {free / 2**30:.1f} GiB free")


def _models() -> str:
    names = zoo.names()
    for name in names:
        load_folder(zoo.folder(name))
    return f"{', '.join(names)}: whole, by their SHA-256"


def _sampling(device: str) -> str:
    """The whole ladder with the exact energies of data N(0, I): samples have mean 0 and variance 1."""
    schedule = NoiseSchedule.log_snr(10, high=7, low=-5).to(device)
    variance = (schedule.scale**2).float()
    sampler = LevelSampler(mala(), 40, 0.7 * schedule.sigma[1:].float())
    noise = Noise(0, torch.arange(SAMPLES, device=device))
    *_, last = progressive(lambda y, t: -y.square().sum(-1) / (2 * variance[t]), schedule, sampler, (2,), noise)
    x = last.x.double().flatten()
    for what, value, wanted, error in (
        ("mean", float(x.mean()), 0.0, 1 / math.sqrt(len(x))),
        ("variance", float(x.var()), 1.0, math.sqrt(2 / len(x))),
    ):
        # A hundredth for the steps that a chain of 40 has not yet forgotten.
        if abs(value - wanted) > 5 * error + 0.01:
            raise UserError(f"{what} of {SAMPLES} exact Gaussian samples is {value:.4f}, not {wanted:.0f} +- {error:.4f}")
    return f"{SAMPLES} samples of an exact Gaussian: mean {float(x.mean()):+.3f}, variance {float(x.var()):.3f}"


def _density() -> str:
    """The KL divergence of a model that ships, by quadrature, against the value that is on record."""
    model = load_folder(zoo.folder("checkerboard"))
    known = json.loads((zoo.folder("checkerboard") / "evaluation.json").read_text())["kl"]
    toy = springwell.open_data("checkerboard").toy
    assert toy is not None
    schedule = model.schedule
    kl = divergences(toy, float(schedule.a_cum[0]), float(schedule.sigma_cum[0]), model.normaliser())["kl"]
    if abs(kl - known) > 1e-4:
        raise UserError(f"KL of the checkerboard is {kl:.6f} nats here, {known:.6f} on record")
    return f"KL of the checkerboard {kl:.4f} nats, as on record"

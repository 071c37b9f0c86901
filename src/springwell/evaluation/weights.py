"""The weights of Inception: where they are looked for, how they are fetched, and the files they are read from.

Looked for in this order: the path that is given; $SPRINGWELL_INCEPTION; the user cache, $XDG_CACHE_HOME/springwell or
~/.cache/springwell; inception/ below the data root, $SPRINGWELL_DATA or ~/data. If there is none, the file that pytorch-fid
publishes is downloaded into the cache and compared with its SHA-256.

    .pth          a state dict in torchvision's names, with the fc layer; loaded by ``torch.load(weights_only=True)``
    .pt           a TorchScript archive. Its tensors are read out of it; its code is neither run nor parsed
    .safetensors  what :func:`save_inception` writes

A name that ends in - and 8 digits, as torch.hub's do, says how the file's SHA-256 begins; the file is held to it.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import pickle
import re
import urllib.request
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from springwell.data.formats import first_line
from springwell.errors import UserError
from springwell.evaluation.inception import Inception, Layer, Preprocessing
from springwell.progress import Reporter, Silent
from springwell.training.checkpoint import file_sha256, write_atomically

NAME = "pt_inception-2015-12-05-6726825d.pth"
URL = f"https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/{NAME}"
SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"
# Of the parameters themselves, as Inception.digest has it: other files may hold the same ones.
DIGEST = "faa37c74cec4860f41dc8c4119526a526ca710982b3cdf79831003fc5f4382b4"
_NAMES = (
    NAME,
    "weights-inception-2015-12-05-6726825d.pth",
    "inception-2015-12-05.pt",
    "fid_inception_2015_12_05.pt",
    "inception-2015-12-05.safetensors",
)
_MAX_BYTES = 1 << 30
_BLOCK = 1 << 20


def cache_folder() -> Path:
    """Where what can be made again is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "springwell"


def load_inception(
    path: Path | None = None,
    preprocessing: Preprocessing = "tf1",
    device: str | torch.device = "cpu",
    reporter: Reporter | None = None,
) -> Inception:
    """The network with its weights.

    Args:
        path: The file. Default: the first that is found, else a download.
        preprocessing: How bytes become its input.
        device: Where to compute.
        reporter: Is told of a download, and of parameters that are not the known ones.
    """
    reporter = reporter or Silent()
    path = find_weights(path) or download(reporter)
    _check_name(path)
    try:
        network = Inception(preprocessing).load(*read_weights(path))
    except UserError as error:
        raise UserError(f"--inception {path}: {error}; it is not the Inception of the FID. {_how()}") from None
    if network.digest != DIGEST:
        reporter.warn(f"{path}: not the parameters of the FID's Inception (SHA-256 {network.digest[:8]}, not {DIGEST[:8]})")
    if network.fc is not None:
        network.fc = network.fc.to(device)
    return network.eval().to(device)


def find_weights(path: Path | None = None) -> Path | None:
    """The file to use; None if there is none."""
    for given, what in ((path, "--inception"), (os.environ.get("SPRINGWELL_INCEPTION"), "SPRINGWELL_INCEPTION")):
        if given:
            file = Path(given).expanduser()
            if not file.is_file():
                raise UserError(f"{what} {given}: {'is a folder' if file.is_dir() else 'no such file'}. {_how()}")
            return file
    root = Path(os.environ.get("SPRINGWELL_DATA") or "~/data").expanduser()
    candidates = [folder / name for folder in (cache_folder(), root / "inception") for name in _NAMES]
    return next((file for file in candidates if file.is_file()), None)


def _how() -> str:
    return f"Get {URL} and give it by --inception PATH or in {cache_folder()}"


def _check_name(path: Path) -> None:
    promised = re.search(r"-([0-9a-f]{8})\.\w+$", path.name)
    if promised and not (found := file_sha256(path)).startswith(promised[1]):
        raise UserError(f"--inception {path}: damaged; its SHA-256 begins with {found[:8]}, not {promised[1]}. {_how()}")


def download(reporter: Reporter, url: str = "", sha256: str = "", timeout: float = 30) -> Path:
    """Fetches the commonly used file into the cache. What has another SHA-256 is not kept."""
    url, sha256 = url or URL, sha256 or SHA256
    out = cache_folder() / url.rpartition("/")[2]

    def fetch(file: BinaryIO) -> None:
        digest, received = hashlib.sha256(), 0
        with urllib.request.urlopen(url, timeout=timeout) as response:
            length = int(response.headers.get("Content-Length") or 0)
            with reporter.bar("downloading (MiB)", max(1, length >> 20)) as bar:
                while received <= _MAX_BYTES and (block := response.read(_BLOCK)):
                    file.write(block)
                    digest.update(block)
                    bar.advance(((received + len(block)) >> 20) - (received >> 20))
                    received += len(block)
        if received < length:
            raise UserError(f"{url}: broke off after {received:,} of {length:,} bytes; try again. {_how()}")
        if digest.hexdigest() != sha256:
            raise UserError(f"{url}: its SHA-256 begins with {digest.hexdigest()[:8]}, not {sha256[:8]}; not kept. {_how()}")

    reporter.say(f"downloading the weights of Inception from {url} to {out}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, fetch)
    except UserError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        reason = first_line(reason) if isinstance(reason, BaseException) else reason
        raise UserError(f"no weights of Inception here, and the download failed ({reason}). {_how()}") from None
    return out


def read_weights(path: Path) -> tuple[dict[str, Layer], Tensor | None]:
    """The layers by the names of our module, and the weights of the fc layer if the file has one."""
    try:
        if path.suffix == ".safetensors":
            tensors = load_file(path)
        elif _is_torchscript(path):
            tensors = _from_torchscript(_read_torchscript(path))
        else:
            tensors = _from_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except UserError:
        raise
    except (OSError, EOFError, ValueError, RuntimeError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"cannot be read ({first_line(error)})") from None
    except (pickle.UnpicklingError, zipfile.BadZipFile, SafetensorError) as error:
        raise UserError(f"cannot be read ({first_line(error)})") from None
    fc = tensors.pop("fc.weight", None)
    layers = {}
    for name in [name.removesuffix(".weight") for name in tensors if name.endswith(".weight")]:
        parts = {part: tensors[f"{name}.{part}"] for part in Layer._fields if f"{name}.{part}" in tensors}
        if missing := {"beta", "mean", "var"} - parts.keys():
            raise UserError(f"'{name}' has no {min(missing)}")
        layers[name] = Layer(**parts)
    return layers, fc


def save_inception(path: Path, layers: Mapping[str, Layer], fc: Tensor | None = None) -> None:
    """Writes weights as a .safetensors file, which needs no unpickling to be read."""
    tensors = {f"{name}.{part}": x for name, layer in layers.items() for part, x in layer._asdict().items() if x is not None}
    if fc is not None:
        tensors["fc.weight"] = fc
    write_atomically(path, save({name: tensor.contiguous() for name, tensor in tensors.items()}))


def _from_state_dict(state: Any) -> dict[str, Tensor]:
    """Our names for those of the state dict: Mixed_5b.branch1x1.bn.running_mean -> mixed_5b.branch1x1.mean."""
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise UserError("holds no state dict")
    endings = {
        "conv.weight": "weight",
        "bn.weight": "scale",
        "bn.bias": "beta",
        "bn.running_mean": "mean",
        "bn.running_var": "var",
    }
    tensors = {}
    for name, tensor in state.items():
        for theirs, ours in endings.items():
            if name.endswith(f".{theirs}"):
                tensors[f"{name[0].lower()}{name[1:]}".removesuffix(theirs) + ours] = tensor
    if "fc.weight" in state:
        tensors["fc.weight"] = state["fc.weight"]
    return tensors


_STEM = ("conv2d_1a_3x3", "conv2d_2a_3x3", "conv2d_2b_3x3", "conv2d_3b_1x1", "conv2d_4a_3x3")
_MIXED = ("5b", "5c", "5d", "6a", "6b", "6c", "6d", "6e", "7a", "7b", "7c")


def _from_torchscript(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our names for those of the archive, which keep TensorFlow's: layers.mixed_1.tower.conv_1 -> mixed_5c.branch5x5_2."""
    prefix = next((name.partition("layers.")[0] for name in tensors if "layers." in name), "")
    found: dict[str, Tensor] = {}
    for name, convolution in _torchscript_names().items():
        for part in Layer._fields[:4]:
            if (tensor := tensors.get(f"{prefix}layers.{convolution}.{part}")) is not None:
                found[f"{name}.{part}"] = tensor
    if (fc := tensors.get(f"{prefix}output.weight")) is not None:
        found["fc.weight"] = fc
    return found


def _torchscript_names() -> dict[str, str]:
    names = {name: f"conv_{i}" if i else "conv" for i, name in enumerate(_STEM)}
    pooled = {"branch1x1": "conv", "branch_pool": "tower_2.conv"}
    blocks = {
        "5": pooled | _tower("branch5x5_", "tower", 2) | _tower("branch3x3dbl_", "tower_1", 3),
        "6a": {"branch3x3": "conv"} | _tower("branch3x3dbl_", "tower", 3),
        "6": pooled | _tower("branch7x7_", "tower", 3) | _tower("branch7x7dbl_", "tower_1", 5),
        "7a": _tower("branch3x3_", "tower", 2) | _tower("branch7x7x3_", "tower_1", 4),
        "7": {
            "branch1x1": "conv",
            "branch3x3_1": "tower_conv",
            "branch3x3_2a": "tower_mixed_conv",
            "branch3x3_2b": "tower_mixed_conv_1",
            "branch3x3dbl_1": "tower_1_conv",
            "branch3x3dbl_2": "tower_1_conv_1",
            "branch3x3dbl_3a": "tower_1_mixed_conv",
            "branch3x3dbl_3b": "tower_1_mixed_conv_1",
            "branch_pool": "tower_2_conv",
        },
    }
    for i, block in enumerate(_MIXED):
        for ours, theirs in blocks.get(block, blocks.get(block[0], {})).items():
            names[f"mixed_{block}.{ours}"] = f"mixed_{i}.{theirs}" if i else f"mixed.{theirs}"
    return names


def _tower(ours: str, theirs: str, num: int) -> dict[str, str]:
    return {f"{ours}{i + 1}": f"{theirs}.conv_{i}" if i else f"{theirs}.conv" for i in range(num)}


def _is_torchscript(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _read_torchscript(path: Path) -> dict[str, Tensor]:
    with zipfile.ZipFile(path) as archive:
        if sum(info.file_size for info in archive.infolist()) > _MAX_BYTES:
            raise UserError(f"holds more than {_MAX_BYTES >> 30} GiB")
        folder = next(name for name in archive.namelist() if name.endswith("/constants.pkl")).removesuffix("constants.pkl")
        with archive.open(f"{folder}data.pkl") as file:
            root = _TensorsOnly(file, archive, f"{folder}data/").load()
    tensors: dict[str, Tensor] = {}
    _collect(root, "", tensors)
    return tensors


def _collect(value: Any, name: str, into: dict[str, Tensor]) -> None:
    if isinstance(value, Tensor):
        into[name] = value
    elif isinstance(value, _Object):
        for key, child in value.attributes.items():
            _collect(child, f"{name}.{key}" if name else key, into)


class _Object:
    """Stands for any class of the archive: attributes and no behaviour."""

    attributes: dict[str, Any]

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
            raise UserError("holds an object in a form that is not read")
        self.attributes = state


class _FloatStorage:
    """Stands for the type of a piece of memory."""


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Tensor:
    if not isinstance(storage, Tensor) or not all(type(n) is int and n >= 0 for n in (offset, *size, *stride)):
        raise UserError("holds a tensor in a form that is not read")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if 0 in size or last >= len(storage):
        raise UserError("holds a tensor that is larger than its memory")
    return storage.as_strided(size, stride, offset)


class _TensorsOnly(pickle.Unpickler):
    """Builds tensors, numbers, strings, lists and bare objects, and looks up nothing that could do anything."""

    def __init__(self, file: IO[bytes], archive: zipfile.ZipFile, folder: str):
        super().__init__(file)
        self.archive, self.folder = archive, folder

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "__torch__":
            return _Object
        known = {
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("torch", "FloatStorage"): _FloatStorage,
            ("collections", "OrderedDict"): dict,
            ("torch.jit._pickle", "build_intlist"): list,
        }
        if (module, name) not in known:
            raise UserError(f"asks for {module}.{name}, which weights do not need; it was not read")
        return known[module, name]

    def persistent_load(self, pid: Any) -> Tensor:
        kind, storage, key, _, num = pid
        if kind != "storage" or storage is not _FloatStorage:
            raise UserError("holds a tensor that is not float32")
        data = self.archive.read(f"{self.folder}{key}")
        if len(data) != 4 * num:
            raise UserError(f"{self.folder}{key} has {len(data)} bytes, not {4 * num}")
        return torch.frombuffer(bytearray(data), dtype=torch.float32)

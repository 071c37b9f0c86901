"""The weights of Inception: where they are looked for, how they are fetched, and the files they are read from.

Looked for in this order: the path that is given; $SPRINGWELL_INCEPTION; the user cache, $XDG_CACHE_HOME/springwell or
~/.cache/springwell; inception/ below the data root, $SPRINGWELL_DATA or ~/data. If there is none, the file that pytorch-fid
publishes is downloaded into the cache and compared with its SHA-256.

    .pth          a state dict in torchvision's names, with the fc layer, read by ``torch.load(weights_only=True)``
    .pt           a TorchScript archive. Its tensors are read out of it by an unpickler that can build tensors and bare objects
                  and nothing else; its code is neither run nor parsed
    .safetensors  what :func:`save_inception` writes

A name that ends in - and 8 digits, as torch.hub's do, says how the file's SHA-256 begins; the file is held to it.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import math
import os
import pickle
import pickletools
import re
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from springwell.data.formats import first_line
from springwell.errors import UserError
from springwell.evaluation.inception import Inception, Layer, Preprocessing
from springwell.progress import SILENT, Reporter
from springwell.store.files import file_sha256, open_regular, shown, write_atomically

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
_MAX_BYTES = 1 << 29
_MAX_OPCODES = 1 << 19
# Opcodes that could hide which object is on top of the stack, or name one without GLOBAL.
_REFUSED = frozenset("MEMOIZE POP POP_MARK DUP INST OBJ STACK_GLOBAL EXT1 EXT2 EXT4 NEXT_BUFFER READONLY_BUFFER".split())  # noqa: SIM905
_BLOCK = 1 << 20


def cache_folder() -> Path:
    """Where what can be made again is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "springwell"


def load_inception(
    path: Path | None = None,
    preprocessing: Preprocessing = "tf1",
    device: str | torch.device = "cpu",
    reporter: Reporter = SILENT,
    data_root: str | None = None,
) -> Inception:
    """The network with its weights.

    Args:
        path: The file. Default: the first that is found, else a download.
        preprocessing: How bytes become its input.
        device: Where to compute.
        reporter: Receives updates of a download, and a warning of parameters that are not the known ones.
        data_root: Below which to look, if not $SPRINGWELL_DATA.
    """
    option = "inception=" if path is not None else ""
    path = find_weights(path, data_root) or download(reporter)
    try:
        network = Inception(preprocessing).load(*read_weights(path))
    except UserError as error:
        _check_name(path, option)
        raise UserError(f"{option}{path}: {error}; it is not the Inception of the FID. {_how()}") from None
    if network.digest != DIGEST:
        _check_name(path, option)
        reporter.warn(f"{path}: not the parameters of the FID's Inception (SHA-256 {network.digest[:8]}, not {DIGEST[:8]})")
    if network.fc is not None:
        network.fc = network.fc.to(device)
    return network.eval().to(device)


def find_weights(path: Path | None = None, data_root: str | None = None) -> Path | None:
    """The file to use; None if there is none."""
    for given, what in ((path, "inception="), (os.environ.get("SPRINGWELL_INCEPTION"), "$SPRINGWELL_INCEPTION ")):
        if given:
            file = Path(given).expanduser()
            if not file.is_file():
                raise UserError(f"{what}{given}: {'is a folder' if file.is_dir() else 'no such file'}. {_how()}")
            return file
    root = Path(data_root or os.environ.get("SPRINGWELL_DATA") or "~/data").expanduser()
    candidates = [folder / name for folder in (cache_folder(), root / "inception") for name in _NAMES]
    return next((file for file in candidates if file.is_file()), None)


def _how() -> str:
    return f"Get {URL} and give it by inception=PATH, by $SPRINGWELL_INCEPTION or in {cache_folder()}"


def _check_name(path: Path, option: str) -> None:
    """Raises UserError for a file whose name promises another SHA-256 than it has, and which is not good all the same."""
    promised = re.search(r"-([0-9a-f]{8})\.\w+$", path.name)
    if promised and not (found := file_sha256(path)).startswith(promised[1]):
        raise UserError(f"{option}{path}: damaged; its SHA-256 begins with {found[:8]}, not {promised[1]}. {_how()}")


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
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > _MAX_BYTES:
                raise UserError(f"has more than {_MAX_BYTES >> 20} MiB")
            tensors = load_file(path) if path.suffix == ".safetensors" else _read_torch(file)
    except UserError:
        raise
    except Exception as error:
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
    parts = {
        "conv.weight": "weight",
        "bn.weight": "scale",
        "bn.bias": "beta",
        "bn.running_mean": "mean",
        "bn.running_var": "var",
    }
    tensors = {"fc.weight": state["fc.weight"]} if "fc.weight" in state else {}
    for name, tensor in state.items():
        layer, _, ending = str(name).rpartition(".")
        layer, _, module = layer.rpartition(".")
        if layer and (ours := parts.get(f"{module}.{ending}")):
            tensors[f"{layer[0].lower()}{layer[1:]}.{ours}"] = tensor
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


def _read_torch(file: IO[bytes]) -> dict[str, Tensor]:
    """The tensors of a file of PyTorch: a state dict, or a TorchScript archive, which is a zip file with a constants.pkl."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            if sum(info.file_size for info in archive.infolist()) > _MAX_BYTES:
                raise UserError(f"holds more than {_MAX_BYTES >> 20} MiB")
            names = archive.namelist()
            pickled = next((name for name in names if re.fullmatch("[^/]+/data.pkl", name)), None)
            if pickled is None:
                raise UserError("is not a file of PyTorch")
            folder, content = pickled.removesuffix("data.pkl"), io.BytesIO(archive.read(pickled))
            _check_pickle(content)
            if f"{folder}constants.pkl" in names:
                content.seek(0)
                root = _TensorsOnly(content, lambda key: archive.read(f"{folder}data/{key}")).load()
                if not isinstance(root, _Object):
                    raise UserError("holds no module")
                return _from_torchscript(_attributes(root))
    else:
        # Before PyTorch 1.6: five pickles, then the memory of the tensors.
        file.seek(0)
        for _ in range(5):
            _check_pickle(file)
    file.seek(0)
    return _from_state_dict(torch.load(file, map_location="cpu", weights_only=True))


def _check_pickle(file: IO[bytes]) -> None:
    """Raises UserError unless the next pickle of a file names only what weights need and is read in time linear in its length.

    A tuple of a tuple of a tuple ..., each twice, has 2^n leaves for whoever hashes it as a key. So no tuple may be used twice.
    """
    top, tuples = "", set[int]()
    argument: Any
    for count, (opcode, argument, _) in enumerate(pickletools.genops(file)):
        name, place = opcode.name, argument if isinstance(argument, int) else 0
        if count >= _MAX_OPCODES or name in _REFUSED:
            raise UserError(f"holds a pickle with {name}, which weights do not need; it was not read")
        if name == "GLOBAL" and not argument.startswith("__torch__") and tuple(argument.split(" ", 1)) not in _KNOWN:
            raise UserError(f"asks for {shown(argument.replace(' ', '.'))}, which weights do not need; it was not read")
        if name.endswith("PUT"):
            if place >= _MAX_OPCODES:
                raise UserError("holds a pickle that remembers more than it holds")
            (tuples.add if top == "tuple" else tuples.discard)(place)
        elif name.endswith("GET") and place in tuples:
            raise UserError("holds a pickle that uses a tuple twice; it was not read")
        top = opcode.stack_after[-1].name if opcode.stack_after else top


def _attributes(root: _Object) -> dict[str, Tensor]:
    """All tensors of an object, by their dotted names. What has two names has the first."""
    tensors: dict[str, Tensor] = {}
    seen = set()

    def collect(value: Any, name: str) -> None:
        if len(name) > 1000:
            raise UserError("holds objects in objects in objects ...")
        if isinstance(value, _Held):
            tensors[name] = value.tensor
        elif isinstance(value, _Object) and id(value) not in seen:
            seen.add(id(value))
            for key, child in value.attributes.items():
                collect(child, f"{name}.{key}" if name else key)

    collect(root, "")
    return tensors


class _Object:
    """Stands for any class of an archive: attributes and no behaviour."""

    attributes: dict[str, Any]

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
            raise UserError("holds an object in a form that is not read")
        self.attributes = state


class _Held:
    """A tensor, which has a __setstate__ of its own, out of the reach of the pickle."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor

    def __setstate__(self, state: Any) -> None:
        raise UserError("holds a tensor in a form that is not read")


def _nothing(*_: Any) -> None:
    """Stands for lists of numbers and for hooks, which no weights are."""


def _tensor(memory: Any, offset: Any, size: Any, stride: Any, *_: Any) -> _Held:
    shaped = all(isinstance(part, (tuple, list)) and len(part) <= 8 for part in (size, stride))
    if not isinstance(memory, _Held) or not shaped or not all(type(n) is int and n >= 0 for n in (offset, *size, *stride)):
        raise UserError("holds a tensor in a form that is not read")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if 0 in size or max(last + 1, math.prod(size)) > memory.tensor.numel():
        raise UserError("holds a tensor that is larger than its memory")
    return _Held(memory.tensor.as_strided(size, stride, offset))


_KNOWN = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _nothing,
    ("torch.jit._pickle", "build_intlist"): _nothing,
    ("collections", "OrderedDict"): _nothing,
    ("torch", "FloatStorage"): torch.float32,
    ("torch", "DoubleStorage"): torch.float64,
    ("torch", "HalfStorage"): torch.float16,
    ("torch", "LongStorage"): torch.int64,
}


class _TensorsOnly(pickle.Unpickler):
    """Builds tensors, numbers, strings, lists and bare objects, and looks up nothing that could do anything.

    Args:
        file: The pickle of a TorchScript archive.
        memory: key -> a piece of memory, asked for once.
    """

    def __init__(self, file: IO[bytes], memory: Callable[[str], bytes]):
        super().__init__(file)
        self.memory = memory
        self.known: dict[str, _Held] = {}

    def find_class(self, module: str, name: str) -> Any:
        return _Object if module.split(".")[0] == "__torch__" else _KNOWN[module, name]

    def persistent_load(self, pid: Any) -> _Held:
        kind, dtype, key, _, num, *_ = pid
        if kind != "storage" or not isinstance(dtype, torch.dtype) or not isinstance(key, str) or type(num) is not int:
            raise UserError("holds a tensor in a form that is not read")
        if key not in self.known:
            data = self.memory(key)
            if len(data) != dtype.itemsize * num:
                raise UserError(f"{shown(key)} has {len(data)} bytes, not {dtype.itemsize * num}")
            self.known[key] = _Held(torch.frombuffer(bytearray(data), dtype=dtype))
        if self.known[key].tensor.dtype != dtype:
            raise UserError("holds a tensor in a form that is not read")
        return self.known[key]

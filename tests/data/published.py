"""Small image sets in the formats of their publishers."""

import gzip
import io
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image


def photographs(num: int, height: int, width: int, seed: int = 0, channels: int = 3) -> np.ndarray:
    """Smooth random images, uint8 [num, height, width, 3] or [num, height, width]."""
    rng = np.random.default_rng(seed)
    shape = (4, 4, channels) if channels == 3 else (4, 4)
    small = [Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)) for _ in range(num)]
    return np.stack([np.asarray(image.resize((width, height), Image.Resampling.BICUBIC)) for image in small])


def encoded(image: np.ndarray, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind, **options)
    return buffer.getvalue()


def write_folder(path: Path, images: np.ndarray, start: int = 0) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for i, image in enumerate(images, start):
        (path / f"{i:04d}.png").write_bytes(encoded(image))


def write_idx(path: Path, images: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = struct.pack(">IIII", 0x803, *images.shape) + images.tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def cifar_binary(rows: np.ndarray) -> bytes:
    labels = (np.arange(len(rows)) % 10).astype(np.uint8)[:, None]
    return np.concatenate([labels, rows.reshape(len(rows), -1)], 1).tobytes()


class Python2Pickler(pickle._Pickler):
    """Writes bytes as Python 2 wrote its strings, as the published batches have them."""

    dispatch: ClassVar[dict] = dict(pickle._Pickler.dispatch)

    def save_bytes(self, value):
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    dispatch[bytes] = save_bytes


def cifar_pickle(rows: np.ndarray, python2: bool = False) -> bytes:
    batch = {b"data": rows.reshape(len(rows), -1), b"labels": [i % 10 for i in range(len(rows))], b"batch_label": b"one"}
    if not python2:
        return pickle.dumps(batch, 2)
    buffer = io.BytesIO()
    Python2Pickler(buffer, 2).dump(batch)
    return buffer.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def write_celeba(root: Path, images: np.ndarray, parts: list[int], zipped: bool = False) -> None:
    base = root / "celeba"
    base.mkdir(parents=True)
    files = {f"{i:06d}.jpg": encoded(image, "JPEG", quality=95) for i, image in enumerate(images, 1)}
    if zipped:
        with zipfile.ZipFile(base / "img_align_celeba.zip", "w") as archive:
            for name, data in files.items():
                archive.writestr(f"img_align_celeba/{name}", data)
    else:
        (base / "img_align_celeba").mkdir()
        for name, data in files.items():
            (base / "img_align_celeba" / name).write_bytes(data)
    lines = [f"{name} {part}\n" for name, part in zip(files, parts, strict=True)]
    (base / "list_eval_partition.txt").write_text("".join(lines))


def write_lsun(path: Path, images: list[np.ndarray]) -> None:
    import lmdb

    path.mkdir(parents=True)
    with lmdb.open(str(path), map_size=1 << 24) as database, database.begin(write=True) as transaction:
        for i, image in enumerate(images):
            transaction.put(f"{i:040x}".encode(), encoded(image, "WEBP", lossless=True))

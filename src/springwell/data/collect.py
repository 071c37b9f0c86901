"""Sets of encoded images: which there are, in which order, and which of them are for testing.

celeba       partition 0 of the publisher's file is for training and 2 for testing; 1 (validation) is left out
lsun         the publisher's training and validation databases
folder, zip  the subfolders train/ and test/ (or val/) if there are such, else every 10th of the sorted names is for testing
hf           the splits train and test (or validation), else every 10th image is for testing
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from springwell.data.decode import MAX_FILE, Container, Rule, open_lmdb
from springwell.data.formats import StoppedError, UnusableDataError, first_line, missing_data
from springwell.store.files import open_regular, read_regular

CHUNK = 256
SUFFIXES = frozenset(
    ".png .jpg .jpeg .jpe .jfif .webp .gif .bmp .tif .tiff .ppm .pgm .pbm .pnm .jp2 .avif".split()  # noqa: SIM905
)
_TEST_NAMES = ("test", "val", "valid", "validation")
_FEWEST = 10
_MAX_LIST = 1 << 26
Item = tuple[str, Any]


@dataclass(frozen=True)
class Split:
    """The encoded images of one split.

    Attributes:
        container: Where they lie.
        items: index -> (name, reference) of the images from there on.
        num: How many there are; None if it is not known before all are read.
    """

    container: Container
    items: Callable[[int], Iterator[Item]]
    num: int | None

    def chunks(self, start: int = 0, length: int = CHUNK) -> Iterator[list[Item]]:
        """Images from chunk ``start`` on, ``length`` at a time."""
        items = self.items(start * length)
        while chunk := list(islice(items, length)):
            yield chunk


@dataclass(frozen=True)
class Encoded:
    """A data set that has to be decoded.

    Attributes:
        train: For training.
        test: Held out.
        rule: What is done to every image.
        fingerprint: Of the names, sizes and times of the images, as far as they are known; it tells whether the set changed.
        by_folder: Whether the folders of images are their classes.
    """

    train: Split
    test: Split
    rule: Rule
    fingerprint: str
    by_folder: bool = False


def class_of(name: str) -> str:
    """The class of an image: the folder that it is in; empty for none, and for the folders of splits."""
    folder = Path(name).parent.name
    return "" if folder in ("train", *_TEST_NAMES) else folder


def _listed(container: Container, items: Sequence[Item]) -> Split:
    return Split(container, lambda start: iter(items[start:]), len(items))


def _fingerprint(lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode(errors="surrogateescape") + b"\n")
    return digest.hexdigest()


def listing(path: Path) -> list[tuple[str, str]]:
    """Names of the images in a folder and the folders in it, sorted, and what tells whether they change."""
    if not path.is_dir():
        what = "is not a folder; use zip:PATH or npz:PATH for files" if path.exists() else "no such folder"
        raise UnusableDataError(what)
    names: list[tuple[str, str]] = []
    for where, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if Path(name).suffix.lower() in SUFFIXES and not name.startswith("."):
                file = Path(where) / name
                try:
                    found = file.stat()
                    state = f"{found.st_size} {found.st_mtime_ns}"
                except OSError:
                    state = "unreadable"
                names.append((file.relative_to(path).as_posix(), state))
    return sorted(names)


def folder(path: Path, size: int | None) -> Encoded:
    """Images in a folder and the folders in it."""
    names = listing(path)
    return _by_name(Container("files"), {name: str(path / name) for name, _ in names}, size, names)


def archive(path: Path, size: int | None) -> Encoded:
    """Images in a zip file."""
    members = sorted((info.filename, info.CRC) for info in _members(path) if _is_image(info.filename))
    return _by_name(Container("zip", str(path)), {name: name for name, _ in members}, size, members)


def _by_name(container: Container, references: dict[str, str], size: int | None, states: Iterable[tuple[str, Any]]) -> Encoded:
    """The images that sorted names refer to, and what tells whether they change."""
    train, test = (_listed(container, [(name, references[name]) for name in part]) for part in _divided(list(references)))
    return Encoded(train, test, Rule(size), _fingerprint(f"{name} {state}" for name, state in states), by_folder=True)


def _is_image(name: str) -> bool:
    return Path(name).suffix.lower() in SUFFIXES and not re.search(r"(^|/)(\.|__MACOSX/)", name)


def _members(path: Path) -> list[zipfile.ZipInfo]:
    try:
        with open_regular(path) as stored, zipfile.ZipFile(stored) as file:
            return file.infolist()
    except FileNotFoundError:
        raise UnusableDataError("no such file") from None
    except Exception as error:
        raise UnusableDataError(f"{path} is not a readable zip file ({first_line(error)})") from None


def _divided(names: list[str]) -> tuple[list[str], list[str]]:
    """(train, test) of sorted relative names."""
    if len(names) < _FEWEST:
        kinds = "png, jpg, webp, gif, bmp, tif, ppm, jp2, avif"
        raise UnusableDataError(f"found {len(names) or 'no'} images ({kinds}); needs at least {_FEWEST}")
    parts = [name.split("/") for name in names]
    depth = 0
    while all(len(p) > depth + 2 for p in parts) and len({p[depth] for p in parts}) == 1 and parts[0][depth] != "train":
        depth += 1
    folders: dict[str, list[str]] = {}
    for name, p in zip(names, parts, strict=True):
        if len(p) > depth + 1:
            folders.setdefault(p[depth], []).append(name)
    train = folders.get("train", names)
    if "train" in folders:
        if name := next((name for name in _TEST_NAMES if name in folders), ""):
            return train, folders[name]
        if len(train) < _FEWEST:
            raise UnusableDataError(f"found {len(train)} images in train/ and no test/; needs at least {_FEWEST}")
    return [n for i, n in enumerate(train) if i % 10 != 9], train[9::10]


def celeba(root: Path, size: int) -> Encoded:
    """The aligned and cropped faces: 178 x 178 pixels out of the middle of the published 178 x 218, resized."""
    looked = ["celeba/img_align_celeba/", "celeba/img_align_celeba.zip", "img_align_celeba/", "img_align_celeba.zip"]
    how = "get it and list_eval_partition.txt from mmlab.ie.cuhk.edu.hk/projects/CelebA.html"
    images = next((root / place for place in looked if (root / place).exists()), None)
    if images is None:
        raise missing_data(root, looked, how)
    names = ("list_eval_partition.txt", "list_eval_partition.csv")
    lists = [base / name for base in (images.parent, images.parent / "Eval", root / "celeba", root) for name in names]
    partition = next((p for p in lists if p.is_file()), None)
    if partition is None:
        raise UnusableDataError(f"{images.parent / names[0]} is missing; {how}")
    parts = _partition(partition)
    if images.is_dir():
        nested = images / "img_align_celeba"
        base = nested if nested.is_dir() else images
        container = Container("files")
        present = {entry.name: entry.path for entry in os.scandir(base)}
    else:
        container = Container("zip", str(images))
        present = {Path(info.filename).name: info.filename for info in _members(images) if _is_image(info.filename)}
    if not present.keys() & parts.keys():
        raise UnusableDataError(f"{images} holds none of the images that {partition.name} lists; it is not the aligned CelebA")
    listed = ([(n, present.get(n, n)) for n, part in parts.items() if part == wanted] for wanted in ("0", "2"))
    train, test = (_listed(container, items) for items in listed)
    if not (train.num and test.num):
        raise UnusableDataError(f"{partition} lists no images for training (0) or for testing (2); get it again")
    rule = Rule(size, published=(178, 218), orient=False)
    return Encoded(train, test, rule, _fingerprint(f"{name} {part}" for name, part in parts.items()))


def _partition(path: Path) -> dict[str, str]:
    try:
        lines = read_regular(path, _MAX_LIST).decode("ascii").splitlines()
    except (OSError, ValueError) as error:
        raise UnusableDataError(f"{path} cannot be read ({first_line(error)})") from None
    parts = {}
    for number, line in enumerate(lines, 1):
        fields = line.replace(",", " ").split()
        if not fields or (number == 1 and fields[-1] == "partition"):
            continue
        if len(fields) != 2 or fields[1] not in ("0", "1", "2") or not re.fullmatch(r"\w+\.(jpg|png)", fields[0]):
            raise UnusableDataError(f"{path}, line {number}: '{line[:60]}' is not an image's name and 0, 1 or 2")
        parts[fields[0]] = fields[1]
    return parts


def lsun(root: Path, category: str, size: int) -> Encoded:
    """One category of LSUN, cropped to the central square and resized."""
    if not re.fullmatch(r"\w+", category):
        raise UnusableDataError("no category; use for instance lsun/church_outdoor or lsun/bedroom")
    how = "get it from github.com/fyu/lsun and unzip it"
    for base in (root / "lsun", root):
        paths = [base / f"{category}_{split}_lmdb" for split in ("train", "val")]
        if paths[0].exists():
            break
    else:
        raise missing_data(root, [f"lsun/{category}_train_lmdb", f"{category}_train_lmdb"], how)
    if not paths[1].exists():
        raise UnusableDataError(f"{paths[1]} is missing; {how}")
    _require("lmdb", "lsun")
    keys = [_keys(path) for path in paths]
    listed = ([(key.decode("latin1"), key) for key in found] for found in keys)
    train, test = (_listed(Container("lmdb", str(path)), items) for path, items in zip(paths, listed, strict=True))
    return Encoded(train, test, Rule(size, orient=False), _fingerprint(key.hex() for found in keys for key in found))


def _keys(path: Path) -> list[bytes]:
    import lmdb

    try:
        with open_lmdb(str(path)) as database, database.begin() as transaction:
            keys = [bytes(key) for key in transaction.cursor().iternext(keys=True, values=False)]
    except (lmdb.Error, OSError) as error:
        raise UnusableDataError(f"{path} is not a readable LMDB ({first_line(error)}); get it again") from None
    if not keys:
        raise UnusableDataError(f"{path} is empty; get it again")
    return keys


def _require(module: str, extra: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise UnusableDataError(f"needs {module}; pip install 'springwell[{extra}]'")


def hugging_face(name: str, size: int | None) -> Encoded:
    """A set of the Hugging Face hub, or a folder in one of its formats, read as a stream."""
    _require("datasets", "hf")
    import datasets

    if int(datasets.__version__.partition(".")[0]) < 4:
        raise UnusableDataError("needs datasets 4, as older ones may run code of the set; pip install -U 'springwell[hf]'")
    name, _, config = name.partition("@")
    try:
        if any((Path(name) / file).is_file() for file in ("dataset_dict.json", "state.json")):
            loaded = datasets.load_from_disk(name)
            loaded = loaded if isinstance(loaded, dict) else {"train": loaded}
        else:
            loaded = datasets.load_dataset(name, config or None, streaming=True)
        train = loaded.get("train")
        if train is None:
            raise UnusableDataError(f"has no split 'train', only {', '.join(loaded)}")
        features = train.features or {}
    except UnusableDataError:
        raise
    except Exception as error:
        raise UnusableDataError(f"cannot be opened ({first_line(error)}); use hf:NAME or hf:NAME@CONFIG") from None
    column = next((key for key, feature in features.items() if isinstance(feature, datasets.Image)), None)
    if column is None:
        raise UnusableDataError(f"has no column of images, only {', '.join(features) or 'columns of unknown type'}")
    test = next((loaded[key] for key in _TEST_NAMES if key in loaded), None)
    splits = (
        _streamed(train, column, "train", lambda i: i % 10 != 9),
        _streamed(train, column, "train", lambda i: i % 10 == 9),
    )
    if test is not None:
        splits = _streamed(train, column, "train"), _streamed(test, column, "test")
    return Encoded(*splits, Rule(size), _fingerprint([name, config]))


def _streamed(data: Any, column: str, label: str, chosen: Callable[[int], bool] | None = None) -> Split:
    import datasets

    raw = data.select_columns([column]).cast_column(column, datasets.Image(decode=False))
    splits = getattr(data.info, "splits", None) or {}
    num = len(data) if hasattr(data, "__len__") else getattr(splits.get(str(data.split)), "num_examples", None) or None
    if num is not None and chosen is not None:
        num = sum(map(chosen, range(num)))

    def items(start: int) -> Iterator[Item]:
        try:
            rows: Iterator[tuple[int, Any]] = enumerate(raw) if chosen else enumerate(raw.skip(start), start)
            if chosen is not None:
                rows = islice((pair for pair in rows if chosen(pair[0])), start, None)
            for index, row in rows:
                yield f"{label}[{index}]", _content(row[column] or {})
        except Exception as error:
            raise StoppedError(f"reading stopped ({first_line(error)}); the same command goes on") from None

    return Split(Container("bytes"), items, num)


def _content(image: dict[str, Any]) -> bytes | None:
    """The encoded image: in the row itself, or where its path (which may lead into an archive, or to the hub) says."""
    if image.get("bytes") is None and image.get("path"):
        import fsspec

        if os.path.exists(image["path"]) and not os.path.isfile(image["path"]):
            return None
        try:
            with fsspec.open(image["path"], "rb") as file:
                return bytes(file.read(MAX_FILE + 1))
        except FileNotFoundError:
            return None
    return image.get("bytes")

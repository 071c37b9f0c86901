"""What every command needs: its options, the device, the reporter, and the other processes."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro

from springwell.errors import UserError
from springwell.progress import Reporter

if TYPE_CHECKING:
    from springwell.model import Model

# Numbers that fit in memory.
_MOST_VALUES = 2**27
_QUIET: Any = {"help_behavior_hint": ""}
ModelName = Annotated[
    str,
    tyro.conf.Positional,
    tyro.conf.arg(
        metavar="RUN",
        help="A run directory, the name of a model that ships (also zoo:NAME), or owner/name on the Hugging Face hub.",
    ),
]
Flag = tyro.conf.FlagCreatePairsOff[bool]
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE", **_QUIET)]
Folder = Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", **_QUIET)]
Number = Annotated[int | None, tyro.conf.arg(metavar="INT", **_QUIET)]
DataSpec = Annotated[
    str | None,
    tyro.conf.arg(metavar="DATA", help="Data, written as for train. Default: the model's own training data.", **_QUIET),
]
Overwrite = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help="Overwrite the output if it exists.")]
ClassName = Annotated[
    str | None,
    tyro.conf.arg(
        metavar="CLASS",
        help="Name of the class whose density is used, for models that know classes. Default: the density of all data.",
        **_QUIET,
    ),
]
Guidance = Annotated[
    float,
    tyro.conf.arg(
        metavar="FLOAT",
        help="Weight w in the density p(x) p(c|x)^w, for use with --label. 0: all data. 1: the class. Above 1: stress what "
        "distinguishes the class from others.",
    ),
]
DataRoot = Annotated[
    str | None,
    tyro.conf.arg(metavar="FOLDER", help="Folder that holds the data sets. Default: $SPRINGWELL_DATA, or ~/data.", **_QUIET),
]


@dataclass(frozen=True)
class Common:
    """Options of every command."""

    json: Flag = False
    """Print one JSON object as the last line of stdout."""
    device: Annotated[str, tyro.conf.arg(metavar="DEVICE")] = "auto"
    """Device to compute on: auto, cpu, cuda or xpu. auto uses an accelerator that supports float64, or else the CPU."""
    threads: Number = None
    """Number of CPU threads. Default: depends on the size of the network and the batch, and is at most torch's default."""


@dataclass(frozen=True)
class Command:
    """Base class of the options of every command."""

    common: Common = field(default_factory=Common, kw_only=True)


class Processes(NamedTuple):
    """This process among those launched: its device, whether it is the first, and a context that lets the first go ahead."""

    device: str
    main: bool
    first: Callable[[], contextlib.AbstractContextManager[Any]]


class Context:
    """What a command needs of its environment: the device and the reporter."""

    def __init__(self, common: Common):
        from springwell.progress import Terminal

        self.common = common
        self.reporter: Reporter = Terminal()

    def device(self) -> str:
        """Returns the device for commands that do not train."""
        from springwell.devices import usable_device

        self.set_threads()
        return str(usable_device(self.common.device))

    @contextlib.contextmanager
    def processes(self) -> Iterator[Processes]:
        """Joins the processes that torchrun or accelerate launched, if they did; only the first one talks."""
        self.set_threads()
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            yield Processes(self.device(), True, contextlib.nullcontext)
            return
        from springwell.progress import Silent
        from springwell.training.processes import make_accelerator

        accelerator = make_accelerator(self.common.device)
        if not accelerator.is_main_process:
            self.reporter = Silent()
        yield Processes(str(accelerator.device), accelerator.is_main_process, accelerator.main_process_first)
        accelerator.end_training()

    def tell(self, *lines: str) -> None:
        """Prints a result for people, unless --json asks for one for programs."""
        if not self.common.json:
            print("\n".join(lines), flush=True)

    def set_threads(self) -> None:
        threads = self.common.threads
        if threads is not None:
            import torch

            if not 1 <= threads <= 1024:
                raise UserError(f"--threads {threads}: out of range; use 1 ... {os.cpu_count()}")
            torch.set_num_threads(threads)

    def fit_threads(self, operations: Callable[[], float]) -> None:
        """Sets the number of CPU threads that suits steps of so many operations, unless --threads gives a number."""
        import torch

        from springwell.devices import threads_for

        if self.common.threads is None:
            torch.set_num_threads(threads_for(operations()))


def check_guidance(label: str | None, guidance: float) -> None:
    """Refuses guidance without a class."""
    if label is None and guidance != 1:
        raise UserError(f"--guidance {guidance:g}: needs a class to guide towards; add --label")


def of_class(model: Model, label: str | None, guidance: float) -> Model:
    """Returns the model of the class that a command names, or the model itself if it names none. Raises UserError."""
    check_guidance(label, guidance)
    return model if label is None else model.given(label, guidance)


def load_model(
    run: str, context: Context, device: str | None = None, data: str | None = None, rows: int | None = None
) -> Model:
    """Loads the model that ``run`` names.

    Reports which model is loaded if two have the name, and warns if its training is not finished.

    Args:
        run: A run directory, a model that ships or one on the hub.
        context: The context of the command.
        device: Device of the model. Default: the one that --device names.
        data: The data to measure it on. Default: the data that it was trained on.
        rows: The number of parallel chains. Default: the size of the model's batches.
    """
    from springwell.app.api import find, load_folder
    from springwell.store import zoo
    from springwell.store.run import Run

    if run in zoo.names() and is_main_process():
        mine = next((path for path in (Path(run), Path("runs") / run) if Run(path).config_path.exists()), None)
        if mine == Path(run):
            context.reporter.say(f"{run}: the run in ./{run}; zoo:{run} is the model that ships")
        elif mine is not None:
            context.reporter.say(f"{run}: the model that ships; {mine} is your run")
    folder = find(run)
    model = load_folder(folder, device=device or context.device(), warn=context.reporter.warn)
    if model.device.type == "cpu":
        most = model.automatic_batch()
        context.fit_threads(lambda: min(rows or most, most) * model.gradient_operations())
    config = model.metadata.get("config")
    if config is not None and not Run(folder).finished:
        total = config["training"]["iterations"]
        context.reporter.warn(f"{run}: its training is not finished (iteration {model.iteration} of {total})")
    if data is not None and config is not None:
        model.metadata = {**model.metadata, "name": data, "config": {**config, "data": data}}
    return model


def is_main_process() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


def run_name(run: str) -> str:
    """Returns the name for outputs of a model: the last part of RUN, without the hub's revision."""
    return Path(run.partition("@")[0].removeprefix("zoo:")).name


def place(run: str, out: Path | None, what: str, inside: str = "", data: str | None = None) -> Path:
    """Returns the folder to write: ``out``, the run directory (or ``inside`` of it), or else ./NAME-what.

    The run directory holds only measurements on the run's own data. Those on other ``data`` go to ./NAME-what.
    """
    within = Path(run).is_dir() and data is None
    return out or (Path(run, inside) if within else Path(f"{run_name(run)}-{what}"))


def at_least(*options: tuple[str, int | None, int]) -> None:
    """Refuses values below their minimum. Each item is (option, value, minimum); a value of None was not given."""
    for option, value, least in options:
        if value is not None and value < least:
            raise UserError(f"--{option} {value}: must be at least {least}")


def in_range(*options: tuple[str, int | None, int, int]) -> None:
    """Refuses values out of range. Each item is (option, value, minimum, maximum); a value of None was not given."""
    for option, value, least, most in options:
        if value is not None and not least <= value <= most:
            raise UserError(f"--{option} {value}: out of range; use {least} ... {most}")


def plus_minus(error: float | None, digits: int, by: str = "") -> str:
    """Returns the text of a standard error, which is empty if the error is unknown."""
    return "" if error is None else f" +- {error:.{digits}f}{by}"


def check_new(out: Path | None, overwrite: bool) -> None:
    """Refuses a file that exists, unless it may be overwritten."""
    if out is not None and out.is_file() and not overwrite:
        raise UserError(f"--out {out}: exists; choose another name, or add --overwrite")


def writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written ({error.strerror}); choose another --out") from None
    if not os.access(folder, os.W_OK):
        raise UserError(f"--out {folder}: cannot be written (Permission denied); choose another --out")


@contextlib.contextmanager
def write_errors(out: Path) -> Any:
    try:
        yield
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror})") from None


def told(command: Any, context: Context, out: Path, images: list[Any], num: int, what: str) -> dict[str, Any]:
    failures = [image.problem for image in images if image.pixels is None]
    done = len(images) - len(failures)
    context.tell(f"{out}: {done} images, {num} samples each, of {command.run}, seed {command.seed}; {what}")
    if failures:
        context.tell(f"{len(failures)} of {len(images)} images failed:", *failures)
    return {"run": command.run, "out": str(out), "images": done, "num": num, "seed": command.seed, "failures": failures}


def check_sampling(command: Any) -> None:
    """Refuses impossible numbers of samples, sweeps, steps or images, and impossible seeds."""
    from springwell.applications.batches import check_seed

    at_least(("num", command.num, 1), ("sweeps", command.sweeps, 0), ("steps", command.steps, 0), ("limit", command.limit, 1))
    check_seed(command.seed)


def as_folder(out: Path) -> Path:
    """Returns ``out``, and refuses a name that looks like a file's."""
    from springwell.data.collect import SUFFIXES

    if out.suffix.lower() in SUFFIXES | {".npy", ".npz"}:
        raise UserError(f"--out {out}: the output is a folder; give a name without '{out.suffix}'")
    return out


def check_size(num: int, samples: int, values: int) -> None:
    """Refuses more samples, of ``values`` numbers each, than fit in memory."""
    if samples * values > _MOST_VALUES:
        raise UserError(f"--num {num}: too many; at most {_MOST_VALUES // values} samples fit here; use a smaller --num")


def check_row(num: int, shape: tuple[int, ...]) -> None:
    """Refuses more samples than a picture shows in one row, beside the four other images of that row."""
    from springwell.app.writing import MAX_GRID

    if num + 4 > MAX_GRID:
        most = f"a picture holds at most {MAX_GRID} images"
        raise UserError(f"--num {num}: {most}, and each row also shows 4 other images; use fewer samples")
    check_size(num, num + 4, math.prod(shape))


def beside(image: str, what: str) -> Path:
    """Returns the default folder of results: ./photo-what for photo.png, ./mnist-test-what for mnist@test."""
    return Path(f"{Path(image).stem.replace('@', '-')}-{what}")

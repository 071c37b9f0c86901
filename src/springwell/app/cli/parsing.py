"""From words to a typed command, by tyro: a subcommand for every command and, below ``train``, for every preset.

tyro prints help. A :class:`UserError` describes wrong words in one line, in place of tyro's boxes: the rules below convert
values and raise errors, and tyro returns the options that it does not know.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from springwell.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from springwell.app.config import Config

_MARKERS = (
    tyro.conf.OmitArgPrefixes,
    tyro.conf.OmitSubcommandPrefixes,
    tyro.conf.AvoidSubcommands,
    tyro.conf.PositionalMetavarFromFieldName,
    tyro.conf.HelptextFromCommentsOff,
)


class _BadValueError(Exception):
    """A word that cannot be converted, with a description of the words that can."""

    def __init__(self, word: str, wanted: str):
        super().__init__(word, wanted)
        self.word, self.wanted = word, wanted


def with_kinds(config: Config, words: Sequence[str]) -> Config:
    """Returns ``config`` with the kinds of schedule, network and chains that ``words`` ask for, so that their options exist."""
    from springwell.app.config import KIND_FIELDS, with_fields

    for name in KIND_FIELDS.values():
        for word, value in zip(words, [*words[1:], ""], strict=True):
            option, equals, joined = word.partition("=")
            kind = joined if equals else value
            if option == f"--{name}":
                if kind == "own":
                    known = "mlp, resnet, unet, residual-mlp, residual-unet"
                    raise UserError(f"--network own: a network of your own can only be given from Python; choose {known}")
                config = with_fields(config, **{name: kind})
    return config


def subcommands(commands: dict[str, tuple[Any, str]]) -> Any:
    """Returns a type for tyro with named subcommands: {name: (a dataclass or a default instance of one, description)}."""
    types = []
    for name, (what, description) in commands.items():
        given = dataclasses.is_dataclass(what) and not isinstance(what, type)
        marker = tyro.conf.subcommand(name, description=description, **({"default": what} if given else {}))
        types.append(Annotated[type(what) if given else what, marker])
    return Union[tuple(types)]  # noqa: UP007


def parse_words(commands: Any, words: Sequence[str], description: str = "") -> Any:
    """Returns the command that ``words`` describe. Raises UserError for anything that does not parse; help ends the program."""
    asked = not words or "-h" in words or "--help" in words
    name = " ".join(words[: 2 if words[:1] == ["train"] else 1])
    options: dict[str, Any] = {"prog": "springwell", "config": _MARKERS, "registry": _REGISTRY, "description": description}
    options |= {"args": list(words) or ["--help"], "console_outputs": asked}
    try:
        # Some of tyro's errors are printed even so; ours follow below, in one line.
        with contextlib.nullcontext() if asked else contextlib.redirect_stderr(io.StringIO()):
            command, unknown = tyro.cli(commands, return_unknown_args=True, **options)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UserError(_see(_lacking(_chosen(commands, words), words, name), name)) from None
    except _BadValueError as error:
        raise UserError(_see(f"{_named(error.word, words)}: {error.wanted}", name)) from None
    for word in unknown:
        raise UserError(_see(_unknown(word, command), name))
    return command


def _see(message: str, name: str) -> str:
    return f"{message}{' See' if message.endswith('?') else '; see'} springwell {name} --help"


def _named(word: str, words: Sequence[str]) -> str:
    """Returns the option that ``word`` was given to, and the word."""
    option = ""
    for other in words:
        if other.startswith("--"):
            option, equals, value = other.partition("=")
            other = value if equals else ""
        if other == word:
            break
    return f"{option} {word}".strip() if option else f"'{word}'"


def _chosen(commands: Any, words: Sequence[str]) -> Any:
    """Returns the dataclass, or its instance, of the subcommand that ``words`` begin with."""
    for word in words:
        for part in get_args(commands):
            what, marker = get_args(part)[:2] if get_origin(part) is Annotated else (None, None)
            if getattr(marker, "name", None) == word:
                default = getattr(marker, "default", None)
                commands = default if dataclasses.is_dataclass(default) else what
                break
        else:
            break
    return commands


def _lacking(command: Any, words: Sequence[str], name: str) -> str:
    """Returns why ``words`` are incomplete: an option is misspelt, or an option or argument has too few values."""
    known = dict(_options(command))
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        option, equals, _ = word.partition("=")
        if not option.startswith("--"):
            continue
        plain = option.removeprefix("--")
        if plain not in known and plain.removeprefix("no-") not in known:
            return _unknown(word, command)
        if following.startswith("--") and not equals and not isinstance(known.get(plain, True), bool):
            return f"{option}: needs a value"
    if (short := _short(known, words)) is not None:
        return short
    required = [f for f in dataclasses.fields(command) if f.default is f.default_factory is dataclasses.MISSING]
    positional = [f.name.upper() for f in required if "Positional" in str(f.type) or "ModelName" in str(f.type)]
    for f in required:
        if f.name.upper() not in positional and not any(word.partition("=")[0] == f"--{f.name}" for word in words):
            return f"--{f.name}: is missing"
    if positional:
        return f"command {name}: needs {' '.join(positional)}"
    return f"an argument of {name} has too few values"


def _short(known: dict[str, Any], words: Sequence[str]) -> str | None:
    """Names an option that takes values in rows of a fixed length, as --log-snr does, and was given part of a row."""
    given: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            given[word] = []
        elif given:
            given[next(reversed(given))].append(word)
    for option, values in given.items():
        row = known.get(option.removeprefix("--"))
        if isinstance(row, tuple) and row and isinstance(row[0], tuple):
            row = row[0]
        if isinstance(row, tuple) and row and len(values) % len(row):
            return f"{option} {' '.join(values)}: takes {len(row)} values, not {len(values)}"
    return None


def _unknown(word: str, command: Any) -> str:
    from springwell.app.config import KIND_FIELDS, SECTIONS, Config

    option, _, _ = word.partition("=")
    if not option.startswith("--"):
        return f"'{word}': one argument too many"
    name = option.removeprefix("--").removeprefix("no-").replace("-", "_")
    for section, kinds in SECTIONS.items() if isinstance(command, Config) else ():
        owners = [kind for kind, cls in kinds.items() if name in {f.name for f in dataclasses.fields(cls)}]
        if owners:
            kind_field, named = (KIND_FIELDS[section], owners) if section in KIND_FIELDS else ("network", ["resnet", "unet"])
            return f"{option}: belongs to {' or '.join(f'--{kind_field} {kind}' for kind in named)}"
    return f"{option}: unknown option{did_you_mean(option.removeprefix('--'), dict(_options(command)), '--')}"


def _options(command: Any) -> Iterator[tuple[str, Any]]:
    """Yields the name and the value (or default) of every option; the value is None if there is no default."""
    for f in dataclasses.fields(command):
        value = getattr(command, f.name, None if f.default_factory is dataclasses.MISSING else f.default_factory())
        if dataclasses.is_dataclass(value):
            yield from _options(value)
        else:
            yield f.name.replace("_", "-"), value


def _integer(word: str) -> int:
    """Converts a whole number, also one written as 1e6 or 1_000."""
    try:
        return int(word)
    except ValueError:
        value = float(word)
    if not value.is_integer() or abs(value) > 2**63:
        raise ValueError
    return int(value)


def _rule(convert: Callable[[str], Any], accepts: Callable[[Any], bool], metavar: str) -> PrimitiveConstructorSpec[Any]:
    """Returns tyro's rule for one word, which ``convert`` turns into a value or refuses."""

    def from_words(words: list[str]) -> Any:
        if words == ["None"]:
            # tyro then tries the other half of `int | None`.
            raise ValueError("None")
        return convert(words[0])

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=from_words,
        is_instance=accepts,
        str_from_instance=lambda value: [str(value)],
    )


def _number(kind: type[int] | type[float], words: tuple[str, ...] = ()) -> PrimitiveConstructorSpec[Any]:
    """Returns tyro's rule for a number, or one of a few words."""

    def convert(word: str) -> Any:
        if word in words:
            return word
        try:
            return _integer(word) if kind is int else float(word)
        except (ValueError, OverflowError):
            wanted = f"neither a number nor {' or '.join(words)}" if words else f"not a {'whole ' * (kind is int)}number"
            raise _BadValueError(word, wanted) from None

    def accepts(value: Any) -> bool:
        return value in words or (isinstance(value, (int, kind)) and not isinstance(value, bool))

    return _rule(convert, accepts, "|".join([kind.__name__.upper(), *words]))


def _literal(choices: tuple[str, ...]) -> PrimitiveConstructorSpec[Any]:
    def convert(word: str) -> str:
        if word not in choices:
            raise _BadValueError(word, f"unknown{did_you_mean(word, choices) or '; choose ' + ', '.join(choices)}")
        return word

    # A kind is chosen before tyro parses, so its field has one value; the field's help lists them all.
    metavar = f"{{{','.join(choices)}}}" if len(choices) > 1 else "KIND"
    return _rule(convert, lambda value: value in choices, metavar)


_REGISTRY = ConstructorRegistry()


@_REGISTRY.primitive_rule
def _numbers_and_choices(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    if info.type in (int, float):
        return _number(info.type)
    if get_origin(info.type) is Literal:
        return _literal(get_args(info.type))
    number, *others = get_args(info.type)[::-1] if get_origin(info.type) in (Union, UnionType) else (None,)
    if len(others) == 1 and get_origin(others[0]) is Literal and (number is float or get_origin(number) is Annotated):
        return _number(float, get_args(others[0]))
    return None


@cache
def _documented(module: str) -> dict[str, dict[str, str]]:
    """The strings below the fields of every class of a module: {class: {field: text}}, each text in one line."""
    found: dict[str, dict[str, str]] = {}
    classes = [node for node in ast.parse(inspect.getsource(sys.modules[module])).body if isinstance(node, ast.ClassDef)]
    for cls in classes:
        for pair in pairwise(cls.body):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    found.setdefault(cls.name, {})[name] = " ".join(words.split())
    return found


def _field_help(obj: Any) -> dict[str, str]:
    """Returns the help texts of the fields of a class.

    tyro's own function parses a module again for each of its classes, and breaks the help of an option at every indented
    line of its docstring, in the middle of sentences.
    """
    return _documented(obj.__module__).get(obj.__name__, {}) if obj.__module__.startswith("springwell") else {}


def _has_type(kind: Any, value: Any) -> bool:
    """tyro's test of defaults, without importing typeguard for ``X | None`` and tuples, which takes a tenth of a second."""
    if get_origin(kind) is UnionType:
        return any(_has_type(part, value) for part in get_args(kind))
    return isinstance(value, tuple) if get_origin(kind) is tuple else _tyro_has_type(kind, value)


_tyro_has_type = tyro._resolver.is_instance
tyro._resolver.is_instance = _has_type  # type: ignore[assignment]
tyro._docstrings.parse_docstring_from_object = _field_help  # type: ignore[assignment]

"""Settings: dataclass fields that become flags, with their help, and the one check of their values.

`fedproc_mpi` and `data_prep` both read their command lines with this.
"""

import argparse
import dataclasses
import difflib
import functools
import math
import os
import re
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from fedproc_mpi.errors import UserError
from fedproc_mpi.terminal import say

Options = TypeVar("Options")
REQUIRED = dataclasses.MISSING  # the default of a setting that has none
KINDS = "bool, int, float, str, Path, a Literal of strings or ints, tuple[str, ...], or one of them | None"
READERS: dict[type, tuple[Any, ...]] = {int: (int, float), float: (float,), Path: (Path,)}
METAVARS = {int: "N", float: "X", Path: "PATH", tuple: "NAME"}
FLOAT32_MAX = 3.4e38
WORDS = {bool: "true or false", str: "a string", Path: "a path", tuple: "a list of strings"}


def setting(
    default: Any,
    help: str,
    source: str = "",
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    execution: bool = False,
) -> Any:
    """A dataclass field that is a flag.

    help, source: the text of `--help`, and where the default comes from. low, high: the least and the
    greatest value allowed. above: a value that it must exceed. execution: it cannot change the model.
    """
    text = f"{help} [{source}]" if source else help
    bounds = {"low": low, "high": high, "above": above}
    return dataclasses.field(default=default, metadata={"help": text, "execution": execution, **bounds})


def settings_of(kind: type) -> dict[str, "dataclasses.Field[Any]"]:
    """The settings of a dataclass by name: all its fields but those that are filled by a factory."""
    fields = dataclasses.fields(kind)
    return {f.name: f for f in fields if f.default_factory is dataclasses.MISSING}


def validate(settings: Any) -> None:
    """Check every setting of a dataclass instance: kind, choices, finite, bounds. Call it in __post_init__.

    A whole float in an int setting becomes an int, an int in a float setting a float, and a NumPy number
    Python's, so that equal settings are written alike. Raises UserError, naming the flag, for the first wrong
    value.
    """
    hints = get_type_hints(type(settings))
    for name, field in settings_of(type(settings)).items():
        value = getattr(settings, name)
        kind, choices = _kind(name, hints[name])
        if value is None and type(None) in get_args(hints[name]):
            continue
        if kind is str and isinstance(value, os.PathLike):
            value = os.fspath(value)
        elif hasattr(value, "item") and getattr(value, "shape", None) == ():  # a NumPy number
            value = value.item()
        wrong = _wrong(value, kind, choices, field.metadata)
        if wrong:
            raise UserError(f"{flag(name)} must be {wrong}, not {value!r}")
        value = kind(value) if kind in (int, float) else value
        object.__setattr__(settings, name, value)  # the instance may be frozen


def flag(name: str) -> str:
    """`local_epochs` → `--local-epochs`."""
    return "--" + name.replace("_", "-")


def nearest(word: str, known: Iterable[str]) -> str:
    """'did you mean X?' where a known name is near, else the list of the known ones."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"


class Parser(argparse.ArgumentParser):
    """argparse whose errors are one-line UserErrors; flags may be typed with - or _, never shortened."""

    def __init__(self, of: str, **options: Any) -> None:
        """of: whose flags these are, for the message about an unknown one. options: as for argparse."""
        raw = argparse.RawDescriptionHelpFormatter
        super().__init__(**{"allow_abbrev": False, "formatter_class": raw, **options})
        self._of = of
        self._values: dict[str, Any] = {}

    def add_flags(self, kind: type, title: str, defaults: Mapping[str, Any] | None = None) -> None:
        """A flag for each setting of a dataclass, under a title in --help. defaults: other than its own."""
        group, hints = self.add_argument_group(title), get_type_hints(kind)
        for name, field in settings_of(kind).items():
            default = self._values[name] = (defaults or {}).get(name, field.default)
            help_text = field.metadata.get("help", "")
            text = f"{help_text} ({_shown(default)})".strip().replace("%", "%%")
            of, choices = _kind(name, hints[name])
            # argparse gets no default: what is None afterwards was not given.
            if of is bool:
                action = argparse.BooleanOptionalAction
                group.add_argument(flag(name), action=action, default=None, help=text)
                continue
            group.add_argument(
                flag(name),
                type=functools.partial(_typed, of),
                nargs="*" if of is tuple else None,
                metavar=f"{{{','.join(map(str, choices))}}}" if choices else METAVARS.get(of, "TEXT"),
                help=text,
            )

    def read(self, argv: Sequence[str]) -> dict[str, Any]:
        """The settings' values by name, as given or by default; they are not yet validated.

        Raises UserError for an unknown flag or word, a missing value, and a required flag that is missing.
        """
        return self._values_of(vars(self.parse_args(argv)))

    def read_as(self, kind: type[Options], argv: Sequence[str]) -> tuple[argparse.Namespace, Options]:
        """The words without a flag, and the flags, which are the settings of `kind`, as an instance of it."""
        self.add_flags(kind, "flags")
        given = self.parse_args(argv)
        return given, kind(**self._values_of(vars(given)))

    def _values_of(self, given: Mapping[str, Any]) -> dict[str, Any]:
        values = {k: v if given[k] is None else given[k] for k, v in self._values.items()}
        for name, value in values.items():
            if value is REQUIRED:
                raise UserError(f"{flag(name)} is missing: {self._option_string_actions[flag(name)].help}")
        return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse, with _ in flags read as - and `--lr -1e-3` as `--lr=-1e-3`."""
        words: list[str] = []
        for word in sys.argv[1:] if args is None else args:
            name, equals, value = word.partition("=")
            if name.startswith("--"):
                word = name.replace("_", "-") + equals + value
            elif re.match(r"-[.\d]", word) and words and re.fullmatch(r"--[^=]+", words[-1]):
                word = f"{words.pop()}={word}"
            words.append(word)
        return super().parse_known_args(words, namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse; an unknown word is a UserError with the nearest flag."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            # A word without a dash may be the value of an unknown flag, so that the flag is told first.
            name = next((w for w in unknown if w.startswith("-")), unknown[0]).partition("=")[0]
            meant = flag(name.lstrip("-"))
            known = [word for word in self._option_string_actions if word.startswith("--")]
            if not name.startswith("-") and meant not in known:
                raise UserError(f"{name}: no flag stands before this word; see --help")
            raise UserError(f"{name} is no flag of {self._of}; {nearest(meant, known)}")
        return found

    def _print_message(self, message: str, file: Any = None) -> None:
        say(message.rstrip("\n"), file)

    def error(self, message: str) -> NoReturn:
        """argparse's own complaints in our form."""
        for theirs, ours in (
            (": expected one argument", " needs a value"),
            (": ignored explicit argument", " takes no value, not"),
        ):
            message = message.removeprefix("argument ").replace(theirs, ours)
        raise UserError(message)


def _kind(name: str, hint: Any) -> tuple[type[Any], tuple[Any, ...]]:
    """The kind of a setting's values, and the choices where it has some."""
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(a for a in get_args(hint) if a is not type(None))
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        return type(choices[0]), choices
    kind = get_origin(hint) or hint
    if kind not in (bool, int, float, str, Path) and hint != tuple[str, ...]:
        raise UserError(f"{flag(name)}: a setting cannot be a {hint}; it may be {KINDS}")
    return kind, ()


def _wrong(value: Any, kind: type[Any], choices: tuple[Any, ...], limits: Mapping[str, Any]) -> str:
    """What a value must be and is not, in words; '' where it is right."""
    if choices:
        right = type(value) is kind and value in choices
        return "" if right else f"one of {', '.join(str(c) for c in choices if c != '')}"
    if kind not in (int, float):
        right = isinstance(value, kind) and (kind is not tuple or all(isinstance(v, str) for v in value))
        return "" if right else WORDS[kind]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "a number"
    low, high, above = (limits.get(name) for name in ("low", "high", "above"))
    too_low = (low is not None and value < low) or (above is not None and value <= above)
    if too_low or not math.isfinite(value) or (high is not None and value > high):
        return _range(low, high, above)
    if kind is float and abs(value) > FLOAT32_MAX:
        return f"at most {FLOAT32_MAX:g} in size, as float32 holds it"
    return "a whole number" if kind is int and value != int(value) else ""


def _range(low: float | None, high: float | None, above: float | None) -> str:
    if high is not None and above is not None:
        return f"in ({above}, {high}]"
    if high is not None:
        return f"at most {high}" if low is None else f"in [{low}, {high}]"
    if above is not None:
        return f"above {above}"
    return "a finite number" if low is None else f"at least {low}"


def _typed(kind: type, text: str) -> Any:
    """A flag's text as a value of its kind; the text itself where it is none, for `validate` to refuse."""
    for reader in READERS.get(kind, ()):
        with suppress(ValueError):
            return reader(text)
    return text


def _shown(default: Any) -> str:
    if default is REQUIRED:
        return "required"
    if isinstance(default, bool):
        return f"default: {'on' if default else 'off'}"
    return "default: none" if default in ("", None, ()) else f"default: {default}"

"""Wrong use of a command in one line with the way out: unknown commands and options, and what is missing."""

import difflib
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from shoal.storage.errors import ShoalError
from shoal.storage.options.types import message_of, quoted

# Commands by words that other tools have for them; `{}` is the word behind.
MEANT = {
    **dict.fromkeys(("resume", "continue", "restart"), ("run {} --resume", "RUN")),
    **dict.fromkeys(("train", "start", "launch", "simulate", "exec"), ("run {}", "CONFIG")),
    **dict.fromkeys(("eval", "evaluate", "test", "show", "info", "log", "logs"), ("inspect {}", "RUN")),
    **dict.fromkeys(("grid", "gridsearch"), ("sweep {} KEY=A,B,C", "CONFIG")),
    **dict.fromkeys(("search", "tune", "optimize", "hpo"), ("sweep {} --search optuna --space KEY=LOW:HIGH", "CONFIG")),
    **dict.fromkeys(("plot", "plots", "figure", "figures", "page"), ("report {}", "RUN")),
    **dict.fromkeys(("ls", "runs", "status", "ps"), ("list", "")),
    **dict.fromkeys(("dataset", "datasets"), ("list datasets", "")),
    **dict.fromkeys(("method", "methods", "algorithms"), ("list methods", "")),
    **dict.fromkeys(("model", "models"), ("list models", "")),
    **dict.fromkeys(("rm", "delete", "clean"), ("remove {}", "RUN")),
    **dict.fromkeys(("diff",), ("compare {}", "RUN RUN")),
    **dict.fromkeys(("new", "create"), ("init {}", "PROJECT")),
    **dict.fromkeys(("download", "partition", "preprocess"), ("prepare {}", "CONFIG")),
    **dict.fromkeys(("infer", "inference", "apply"), ("predict {} GRAPH", "RUN")),
    **dict.fromkeys(("keys", "config", "options", "docs", "man"), ("explain", "")),
    **dict.fromkeys(("check",), ("doctor", "")),
    "version": ("--version", ""),
    "help": ("--help", ""),
}
# Commands with these arguments take keys of the config, which other tools take as options.
OF_KEYS = ("overrides", "axes")
OF_CONFIG = ("config", "config_file", "config_path", "config_name", "cfg", "c")
# Repetitions are values of one key; more than so many are shorter by their number.
SEEDS, MOST_SHOWN = ("seeds", "repeat", "repeats", "repetitions", "runs"), 5
SHORT = {"install_completion": "Add completion to the shell."}
# `--help` is known to whom it answers; the help of a command names it.
HIDDEN = ("show_completion", "help")
# Every wrong use is an error of this class, which typer itself does not export.
UsageError: Any = typer.BadParameter.__base__


class OneLineGroup(TyperGroup):
    """The commands, whose wrong use ends as every error that a user can cause: in one line that says the way out."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Lists the options; typer's own have short texts, so that all help fits a screen."""
        parameters: list[Any] = super().get_params(ctx)
        for parameter in parameters:
            if parameter.name in SHORT:
                parameter.help = SHORT[parameter.name]
            parameter.hidden |= parameter.name in HIDDEN
        return parameters

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Reads the options before the command."""
        words = list(args)
        with _errors_in_one_line(words):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta[__name__] = words
        return context

    def invoke(self, ctx: Any) -> Any:
        """Reads the options of the command, and runs it."""
        with _errors_in_one_line(ctx.meta[__name__]):
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Finds the command. Raises ShoalError: there is none of that name; says which was meant."""
        word = args[0]
        if word not in self.commands and not word.startswith("-") and not ctx.resilient_parsing:
            raise ShoalError(word, f"{_command_meant(word, args[1:], self.commands)}no such command; see shoal --help")
        return super().resolve_command(ctx, args)


@contextmanager
def _errors_in_one_line(words: Sequence[str]) -> Iterator[None]:
    """Raises the parser's errors about the `words` of a command line as a ShoalError, which is shown as one line."""
    try:
        yield
    except UsageError as error:
        # A command without words prints its help.
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        # The parser of some versions does not say of which command an error is.
        path = error.ctx.command_path if error.ctx is not None else f"shoal {words[0]}"
        raise ShoalError(*_in_words(error, path, words)) from error


def _command_meant(word: str, behind: Sequence[str], commands: Iterable[str]) -> str:
    """Returns `did you mean shoal ...? ` for a word that is no command; nothing where none is alike."""
    if word.lower() in MEANT:
        form, place = MEANT[word.lower()]
        if word.lower() == "help" and behind and behind[0] in commands:
            return f"did you mean shoal {behind[0]} --help? "
        given = [text for text in behind if not text.startswith("-")][: max(len(place.split()), 1)]
        return f"did you mean shoal {form.format(shlex.join(given) or place)}? "
    close = difflib.get_close_matches(word.lower(), commands, n=1)
    if close:
        return f"did you mean shoal {close[0]}? "
    if word.endswith((".yaml", ".yml")):
        return f"did you mean shoal run {shlex.quote(word)}? "
    from shoal.engine.config.config import SHIPPED

    return f"did you mean shoal run {word}? " if (SHIPPED / f"{word}.yaml").is_file() else ""


def _in_words(error: Any, path: str, words: Sequence[str]) -> tuple[str, ...]:
    """Returns the places and what is wrong there, of an error of wrong use."""
    more = f"see {path} --help"
    if hasattr(error, "possibilities"):
        option = error.option_name
        return option, f"{_option_meant(option, error.ctx, words)}{path} has no such option; {more}"
    if type(error).__name__ == "MissingParameter":
        name = error.param.opts[0] if error.param.opts[0].startswith("-") else error.param.metavar or error.param.name
        example = f", as in {path} quickstart" if name.startswith("CONFIG") else ""
        return path, f"{name} is missing{example}; {more}"
    if isinstance(error.__cause__, ValidationError) and error.param is not None:
        what, _, names = message_of(error.__cause__).partition(" is not one of ")
        if names:
            what = f"must be one of {names.replace(chr(39), '').rstrip('.')}"
        value = error.__cause__.errors()[0].get("input")
        return error.param.opts[0], f"{what}, found {quoted(value)}; {more}"
    if hasattr(error, "option_name"):
        return error.option_name, f"{'takes no' if 'not take' in error.message else 'needs a'} value; {more}"
    text = " ".join(error.format_message().split()).rstrip(".")
    if further := re.fullmatch(r"Got unexpected extra arguments? ?\((.*)\)", text.replace("(s)", "s")):
        return path, f"takes no further argument, found {further[1]}; {more}"
    return path, f"{text.removeprefix('Invalid value for ')}; {more}"


def _option_meant(option: str, context: Any, words: Sequence[str]) -> str:
    """Returns what an unknown option may stand for: a key of the config, or an option of the command."""
    name = option.lstrip("-").replace("-", "_").lower()
    options = [text for parameter in context.command.params for text in parameter.opts if text.startswith("--")]
    takes_keys = any(parameter.name in OF_KEYS for parameter in context.command.params)
    value = _value_of(option, words)
    if takes_keys and name in OF_CONFIG:
        return f"write {context.command_path} {'CONFIG' if value == 'VALUE' else shlex.quote(value)}; "
    if takes_keys and name in SEEDS:
        several = f"seeds={value}" if value.isdecimal() and int(value) > MOST_SHOWN else f"seed={_listed(value)}"
        command = "" if context.command.name == "sweep" else f" with shoal sweep {_config_in(words, value)}"
        return f"write {several}{command}; "
    meant = _key_meant(name, value) if takes_keys else ""
    close = difflib.get_close_matches(option, options, n=1, cutoff=0.75)
    if close and not (meant and meant.partition("=")[0].rpartition(".")[2] == name):
        return f"did you mean {close[0]}? "
    return f"write {meant}; " if meant else ""


def _key_meant(name: str, value: str) -> str:
    from shoal.engine.config.config import Config
    from shoal.engine.config.faults import override_meant

    return override_meant(name, value, Config)


def _value_of(option: str, words: Sequence[str]) -> str:
    """Returns the value that a command gives to an option."""
    for place, word in enumerate(words):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and words[place + 1 :] and not words[place + 1].startswith("--"):
            return words[place + 1]
    return "VALUE"


def _listed(number: str) -> str:
    """Lists so many seeds, from 0."""
    return ",".join(map(str, range(int(number)))) if number.isdecimal() and int(number) else "0,1,2"


def _config_in(words: Sequence[str], value: str) -> str:
    """Returns the config of a command, which is its first argument, beside the value of an option."""
    given = [word for word in words[1:] if not word.startswith("-") and word != value]
    return shlex.quote(given[0]) if given else "CONFIG"

"""Declares the program. A command's module is loaded when the command is called, so that none waits for another's."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ckptkit.cli.errors import CommandGroup

# By command, the module of its function `run_NAME`, whose signature is its options and whose docstring is its help.
COMMANDS = {
    "demo": "demo",
    "ls": "ls",
    "show": "show",
    "report": "report",
    "goodput": "report",
    "export": "export_import",
    "import": "export_import",
    "copy": "copy",
    "verify": "verify",
    "diff": "diff",
    "prune": "prune",
    "doctor": "doctor",
    "replay": "replay",
    "run": "run",
}


class Program(CommandGroup):
    """Has the commands of `COMMANDS`, each loaded when it is needed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]  # their names; `get_command` loads one

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for name, module in COMMANDS.items():  # without importing their modules: all of them take a second
            source = Path(__file__).with_name("commands") / f"{module}.py"
            nodes = ast.parse(source.read_text("utf-8")).body
            (function,) = (node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == f"run_{name}")
            self.commands[name] = TyperCommand(name, help=ast.get_docstring(function))
        super().format_help(ctx, formatter)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS or self.commands[cmd_name] is not None:
            return self.commands.get(cmd_name)
        function = getattr(importlib.import_module(f"ckptkit.cli.commands.{COMMANDS[cmd_name]}"), f"run_{cmd_name}")
        text, _, examples = (inspect.getdoc(function) or "").partition("\n\nExample")
        epilog = "\n\n".join(line.strip() for line in f"Example{examples}".splitlines())
        program = typer.Typer(add_completion=False)
        program.command(cmd_name, help=text, epilog=epilog, no_args_is_help=cmd_name != "demo")(function)
        return typer.main.get_command(program)


app = typer.Typer(
    name="ckptkit",
    cls=Program,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from ckptkit import __version__

        print(f"ckptkit {__version__}")
        raise typer.Exit


@app.callback(epilog="Examples:\n\nckptkit demo\n\nckptkit ls runs/vit-17\n\nckptkit ls --help")
def main(
    *,
    debug: Annotated[
        bool, typer.Option("--debug", envvar="CKPTKIT_DEBUG", help="Show the traceback of an error.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Exact resume for interrupted MindSpore training.

    Exit codes: 0 fine, 1 a problem was found, 2 wrong usage, 3 a storage or a file could not be used.
    """

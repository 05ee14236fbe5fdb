"""Makes the API reference of the documentation site from the docstrings of the public names: `render`.

Guarantees: the page depends on the source below ``ckptkit/`` alone, which is read and not run, so that it needs no
MindSpore; every public name of `ckptkit`, `ckptkit.data` and `ckptkit.nn`, every seam and every public name of
`ckptkit.testing` has a heading there. It does not judge what docstrings say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import griffe

PROJECT = Path(__file__).parent.parent

_HEAD = """# API reference

Made from the docstrings; English only. The [guide](guide.md) explains what belongs together, the
[tutorial](tutorial.md) is the shortest way in.
"""

# Names of `ckptkit` by what one wants to do; those that stand nowhere here come last, under a heading of their own.
_GROUPS = {
    "Train and resume": ["CheckpointCallback", "AccumulationTrainCell", "ResumePoint"],
    "Your own loop": ["loop", "Loop", "CheckpointManager", "StateManager", "SaveHandle", "SaveReport"],
    "When to save, what to keep": ["SaveEvery", "KeepLatest", "KeepEvery", "KeepBest"],
    "Planning K": ["plan_accumulation", "AccumulationPlan", "nearest_plans", "scale_learning_rate"],
    "Foreign train cells and cut parameters": ["BoostCycle", "CycleAdapter", "Box"],
}
_ERRORS = "Errors"
_REST = "More"
_SEAMS = {
    "ckptkit.storage.Storage": "what a storage backend is",
    "ckptkit.core.process_group.World": "what ranks say to each other",
    "ckptkit.snapshot.Capturable": "what can be saved",
}

# Private, or called by MindSpore and not by anybody else.
_NOT_CALLED = ("_", "on_train_", "on_eval_", "construct", "set_grad", "update_parameters_name", "extend_repr", "test_")

_Object = griffe.Object | griffe.Alias


def render() -> str:
    """The page as it should be."""
    package = griffe.load("ckptkit", search_paths=[PROJECT], docstring_parser="google", allow_inspection=False)
    lines = [_HEAD]
    for title, names in _groups(package):
        lines += [f"## {title}\n", *(_entry(package[name], name) for name in names)]
    for module in ("data", "nn"):
        lines += [f"## ckptkit.{module}\n", _text(package[module])]
        lines += [_entry(package[module][name], f"{module}.{name}") for name in _all_of(package[module])]
    lines += ["## Seams\n", "What you may implement yourself; [architecture.md](architecture.md) has the reasons.\n"]
    for path, what in _SEAMS.items():
        lines += [_entry(package[path.removeprefix("ckptkit.")], path.removeprefix("ckptkit."), note=what)]
    lines += ["## ckptkit.testing\n", _text(package["testing"])]
    lines += [_entry(package[name], name, methods=False) for name in testing_names(package)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def testing_names(package: griffe.Object | griffe.Alias) -> list[str]:
    """Every class and function that a module of `ckptkit.testing` defines and does not keep to itself."""
    found = []
    for module in package["testing"].modules.values():
        for name, one in module.members.items():
            if not one.is_alias and not name.startswith("_") and (one.is_class or one.is_function):
                found.append(f"testing.{module.name}.{name}")
    return sorted(found)


def _groups(package: griffe.Object | griffe.Alias) -> Iterator[tuple[str, list[str]]]:
    public = [name for name in _all_of(package) if not package[name].is_module]
    errors = [name for name in public if package[name].canonical_path.startswith("ckptkit.errors.")]
    yield from _GROUPS.items()
    yield _ERRORS, sorted(errors, key=lambda name: (name != "CkptKitError", name))
    grouped = {*errors, *(name for names in _GROUPS.values() for name in names)}
    if rest := [name for name in public if name not in grouped]:
        yield _REST, rest


def _all_of(module: _Object) -> list[str]:
    return [str(name).strip("'\"") for name in module.exports or []]


def _entry(found: _Object, name: str, note: str = "", methods: bool = True) -> str:
    """One name: heading, signature, docstring, and the same for what a class has."""
    one = found.final_target if isinstance(found, griffe.Alias) else found
    lines = [f"### {name}\n"]
    if note:
        lines.append(f"*{note[0].upper()}{note[1:]}.*\n")
    if isinstance(one, griffe.Class):
        lines += [f"```text\n{_class_signature(one, name)}\n```\n", _text(one)]
        lines += _members(one, name) if methods else []
    elif isinstance(one, griffe.Function):
        lines += [f"```text\n{_signature(one, name)}\n```\n", _text(one)]
    else:
        lines.append(_text(one))
    return "\n".join(lines)


def _class_signature(one: griffe.Class, name: str) -> str:
    bases = ", ".join(str(base).rpartition(".")[2] for base in one.bases)
    if "Protocol" in bases or one.canonical_path.startswith("ckptkit.errors."):
        return f"class {name}({bases})"
    made = one.members.get("__init__")
    return _signature(made, name) if isinstance(made, griffe.Function) else f"class {name}"


def _signature(function: griffe.Function, name: str) -> str:
    """As one line where it fits, else with a line for each parameter."""
    shown = list(_parameters(function.parameters))
    returns = f" -> {function.returns}" if function.returns is not None and function.name != "__init__" else ""
    line = f"{name}({', '.join(shown)}){returns}"
    if len(line) <= 100:
        return line
    return "\n".join([f"{name}(", *(f"    {text}," for text in shown), f"){returns}"])


def _parameters(parameters: griffe.Parameters) -> Iterator[str]:
    starred = False
    for one in parameters:
        if one.name in ("self", "cls"):
            continue
        kind = one.kind
        if kind is griffe.ParameterKind.keyword_only and not starred:
            starred = True
            yield "*"
        mark = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(kind, "")
        starred = starred or mark == "*"
        annotation = f": {one.annotation}" if one.annotation is not None else ""
        default = f" = {one.default}" if one.default is not None and not mark else ""
        yield f"{mark}{one.name}{annotation}{default}"


def _members(one: griffe.Class, name: str) -> Iterator[str]:
    """What a class and its private bases have and is public: attributes, then what one line says, then the others."""
    own = {key: member for base in _private_bases(one) for key, member in base.members.items()} | one.members
    public = {key: member for key, member in own.items() if not key.startswith(_NOT_CALLED) and member.has_docstring}
    attributes = [member for member in public.values() if member.is_attribute]
    if attributes:
        yield "**Properties**\n"
        yield "\n".join(f"- `{member.name}`{_type(member)}: {_in_a_line(member)}" for member in attributes) + "\n"
    functions = [member for member in public.values() if isinstance(member, griffe.Function)]
    short = [member for member in functions if _is_short(member)]
    if short:
        yield "**Methods**\n"
        yield "\n".join(f"- `{_signature(member, member.name)}`: {_in_a_line(member)}" for member in short) + "\n"
    for member in functions:
        if member not in short:
            key = member.name
            yield f"#### {name}.{key}\n\n```text\n{_signature(member, key)}\n```\n\n{_text(member)}"


def _is_short(function: griffe.Function) -> bool:
    text = function.docstring.value if function.docstring is not None else ""
    return "\n\n" not in text and "\n" not in _signature(function, function.name)


def _private_bases(one: griffe.Class) -> list[griffe.Class]:
    return [base for base in reversed(one.mro()) if base.name.startswith("_")] if one.bases else []


def _type(member: _Object) -> str:
    annotation = getattr(member, "annotation", None)
    return f" (`{annotation}`)" if annotation is not None else ""


def _in_a_line(member: _Object) -> str:
    text = member.docstring.value if member.docstring is not None else ""
    return " ".join(_as_markdown(text.split("\n\n")[0]).split())


def _text(one: _Object) -> str:
    """A docstring in Markdown."""
    if one.docstring is None:
        return ""
    shown = []
    for section in one.docstring.parsed:
        if section.kind is griffe.DocstringSectionKind.text:
            shown.append(_as_markdown(section.value))
        elif section.kind is griffe.DocstringSectionKind.examples:
            shown.append("**Example**\n\n" + "\n\n".join(f"```text\n{text}\n```" for _, text in section.value))
        elif section.kind is griffe.DocstringSectionKind.admonition:
            shown.append(_as_markdown(section.value.contents))
        else:
            shown.append(f"**{section.kind.value.capitalize()}**\n\n" + "\n".join(_items(section.value)))
    return "\n\n".join(shown) + "\n"


def _items(values: Iterable[griffe.DocstringElement]) -> Iterator[str]:
    for value in values:
        label = getattr(value, "name", "") or str(value.annotation or "").strip("()").replace(", ", "`, `")
        described = " ".join(_as_markdown(value.description).split())
        yield f"- `{label}`: {described}" if label else f"- {described}"


def _as_markdown(text: str) -> str:
    """Double backticks become single ones, and what follows ``::`` a block."""
    parts = re.split(r"::\n\n((?:[ \t]+[^\n]*(?:\n|$)|\n)+)", text)
    shown = []
    for number, part in enumerate(parts):
        if number % 2 == 0:
            shown.append(re.sub(r"``([^`]+)``", r"`\1`", part))
        else:
            lines = part.strip("\n").splitlines()
            indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
            shown.append(":\n\n```text\n" + "\n".join(line[indent:] for line in lines) + "\n```\n\n")
    return "".join(shown).strip()

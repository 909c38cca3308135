"""The YAML files that come with the tuner, found from a checkout and from an installed wheel alike.

In a checkout they are the top-level folders ``search_spaces/``, ``objectives/`` and ``studies/``; in a wheel the same
files lie in ``tuner/shipped/`` (``pyproject.toml``, force-include).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from tuner.documents.complaints import did_you_mean, shown
from tuner.errors import InputError

Kind = Literal["search_spaces", "objectives", "studies"]
"""The folders of shipped files."""

_NOUN: dict[Kind, str] = {"search_spaces": "search space", "objectives": "objective", "studies": "study file"}


def shipped_folder(kind: Kind) -> Path:
    """Where the shipped files of a kind are: in the package if it is installed, else in the checkout around it."""
    package = Path(__file__).resolve().parent
    installed = package / "shipped" / kind
    return installed if installed.is_dir() else package.parent / kind


def shipped_names(kind: Kind) -> tuple[str, ...]:
    """File names of the shipped files of a kind, sorted."""
    return tuple(sorted(path.name for path in shipped_folder(kind).glob("*.yaml") if path.is_file()))


def shipped_file(kind: Kind, name: str | Path, *, beside: Path | None = None) -> Path:
    """The file that a person means by a path or by the name of a shipped file.

    A file that exists under the given path wins; then one beside the study file that names it; then the shipped one of
    that name, with or without ``.yaml``.

    Args:
        beside: folder of the study file that names it; a relative path is looked for there first.

    Raises:
        InputError: there is no such file; says where it was looked for, the nearest name and all shipped names.
    """
    given = Path(name)
    folder = shipped_folder(kind)
    looked = [given]
    if beside is not None and not given.is_absolute():
        looked.insert(0, beside / given)
    if given.name == str(given):  # a bare name, so that no path leads out of the shipped folder
        looked.append(folder / (given.name if given.suffix == ".yaml" else f"{given.name}.yaml"))
    for path in looked:
        if _is_file(path):
            return path
    names = shipped_names(kind)
    where = ", ".join(str(path) if len(str(path)) <= 300 else f"{str(path)[:300]}…" for path in looked)
    raise InputError(
        f"{_NOUN[kind]} {shown(str(name))}: found no such file, looked for {where}; expected a path, or one that is "
        f"shipped with the tuner: {', '.join(names) or 'none is'}{did_you_mean(given.name, names)}"
    )


def _is_file(path: Path) -> bool:
    """Whether a file is there; a path that cannot be looked at has none."""
    try:
        return path.is_file()
    except OSError:  # a name too long, a folder that may not be searched
        return False

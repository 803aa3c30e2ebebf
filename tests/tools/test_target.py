"""What a command is told to look at, and every way to tell it wrong."""

from __future__ import annotations

import sys

import pytest

from asyncloader.tools.target import TargetError, load_target
from tests.tools import graphs

MODULE = "tests.tools.graphs"


@pytest.mark.parametrize("name", ["pipe", "new_pipe", "dealt", "looked_up", "Holder.pipe"])
def test_a_pipe_or_a_function_that_returns_one(name):
    target = load_target(f"{MODULE}:{name}")
    assert target.workers is None
    assert list(target.graph)


def test_a_loader_says_how_many_workers():
    assert load_target(f"{MODULE}:loader").workers == 3


def test_a_file_is_imported_by_its_name_beside_its_neighbours(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(sys.path))
    tmp_path.joinpath("a_neighbour_of_it.py").write_text("from tests.tools.graphs import pipe\n")
    file = tmp_path / "a_file_of_ours.py"
    file.write_text("from a_neighbour_of_it import pipe\n")
    target = load_target(f"{file}:pipe")
    assert sorted(target.graph) == sorted(graphs.pipe)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("graphs", "name the module and the pipe in it"),
        (f"{MODULE}:", "name the module and the pipe in it"),
        ("no_module_of_ours:pipe", "there is no module 'no_module_of_ours'"),
        ("tests.tools.missing:pipe", "there is no module 'tests.tools.missing'"),
        ("no/such/file.py:pipe", "there is no file 'no/such/file.py'"),
        (f"{MODULE}:pip", "did you mean pipe?"),
        (f"{MODULE}:zzz", "what it has are doubled, pipe, loader"),
        (f"{MODULE}:nothing", "is None; name a pipe"),
        (f"{MODULE}:numbers", "is of type list; name a pipe"),
        (f"{MODULE}:new_list", "is of type list; name a pipe"),
        (f"{MODULE}:of_path", "called without arguments, but missing a required argument: 'path'"),
        (f"{MODULE}:soon", "is an async function; let a plain one return the pipe"),
        (f"{MODULE}:failing", r"failing\(\) failed: OSError\('no such data'\)"),
        (f"{MODULE}:unborn", "is a DataLoader2 that has no graph yet"),
        (f"{MODULE}:misled", "is a graph that no loader takes: edges of Misled must be"),
    ],
)
def test_what_is_no_graph_is_told_apart(text, says):
    with pytest.raises(TargetError, match=says):
        load_target(text)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import no_such_thing_at_all", "importing it_is_broken failed: ModuleNotFoundError"),
        ("1 / 0", "importing it_is_broken failed: ZeroDivisionError"),
        ("raise SystemExit(3)", "importing it_is_broken ended the program; put what is to run"),
        ("def", "importing it_is_broken failed: SyntaxError"),
    ],
)
def test_a_module_that_fails_is_the_cause(code, says, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(sys.path))
    file = tmp_path / "it_is_broken.py"
    file.write_text(code)
    with pytest.raises(TargetError, match=says) as raised:
        load_target(f"{file}:pipe")
    assert raised.value.__cause__ is not None


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("json.py", r"json\.py cannot be told from the module 'json'"),
        ("train.v2.py", r"train\.v2\.py cannot be imported, as there is a dot"),
    ],
)
def test_a_file_whose_name_names_no_module_of_its_own_is_refused(name, says, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(sys.path))
    file = tmp_path / name
    file.write_text("pipe = None\n")
    with pytest.raises(TargetError, match=says):
        load_target(f"{file}:pipe")

"""The commands: what they are told to look at, and ``python -m asyncloader graph``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from asyncloader.tools.command import TargetError, load_target, main
from tests.tools import graphs

MODULE = "tests.tools.graphs"
REFERENCE = Path(__file__).parents[2] / "docs/reference.md"


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
        (f"{MODULE}:zzz", "its pipes and loaders are doubled, pipe, loader"),
        (f"{MODULE}:nothing", "is None; name a pipe"),
        (f"{MODULE}:numbers", "is of type list; name a pipe"),
        (f"{MODULE}:new_list", "is of type list; name a pipe"),
        (f"{MODULE}:of_path", "must take no arguments: missing a required argument: 'path'"),
        (f"{MODULE}:soon", "is an async function; name a plain function that returns the pipe"),
        (f"{MODULE}:failing", r"failing\(\) failed: OSError\('no such data'\)"),
        (f"{MODULE}:unborn", "is a DataLoader2 that has no graph yet"),
        (f"{MODULE}:misled", "is not a graph that a DataLoader2 can load: edges of Misled must be"),
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
        ("raise SystemExit(3)", "importing it_is_broken ended the program; put the code to run"),
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
        ("json.py", r"json\.py has the name of the module 'json'"),
        ("train.v2.py", r"train\.v2\.py cannot be imported, because its name has a dot"),
    ],
)
def test_a_file_whose_name_names_no_module_of_its_own_is_refused(name, says, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(sys.path))
    file = tmp_path / name
    file.write_text("pipe = None\n")
    with pytest.raises(TargetError, match=says):
        load_target(f"{file}:pipe")


PIPE = "tests.tools.graphs:pipe"


def test_a_drawing_says_what_runs_where(capsys):
    assert main(["graph", PIPE]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "IterableWrapper()                   | each of 2 workers",
        "shuffle()                           | each of 2 workers",
        "sharding_filter()                   | each of 2 workers",
        "map(double)                         | each of 2 workers",
        "pin_memory(pin_memory_fn=as_it_is)  | loader",
    ]


def test_all_that_a_graph_is_refused_for_is_said(capsys):
    assert main(["graph", "tests.tools.graphs:refused"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("IterableWrapper()")
    name = "async_map(soon_double, ordered=False)"
    read_twice = "sharding_filter() is read several times"
    refused = [
        ("in workers", f"what {name} yields is in no certain order. Put the sharding pipe before"),
        ("on ranks", f"what {name} yields is in no certain order. Put the sharding pipe before"),
        ("on ranks that load the same items", f"{name} yields items as they are ready"),
        ("for a state", "batch(2, max_wait=1.0) depends on time"),
        ("for a state", f"{read_twice}, each in a pass of its own"),
        ("for a state", f"sharding_filter() follows {name}"),
        ("for a state", f"zip() follows {name}"),
        ("for a restart of workers", f"{read_twice}, each in a pass of its own"),
        ("for a restart of workers", f"sharding_filter() follows {name}"),
        ("for a restart of workers", f"zip() follows {name}"),
    ]
    lines = shown.err.splitlines()
    for line, (purpose, says) in zip(lines, refused, strict=True):
        assert line.startswith(f"refused {purpose}: ")
        assert says in line


def test_what_runs_in_no_workers_is_not_refused_for_them(capsys):
    assert main(["graph", "tests.tools.graphs:refused", "--workers", "0"]) == 0
    assert "workers: " not in capsys.readouterr().err


def test_a_graph_that_no_loader_takes_is_drawn_with_the_reasons(capsys):
    assert main(["graph", "tests.tools.graphs:unanswered", "--workers", "0"]) == 0
    shown = capsys.readouterr()
    assert "filter(bool)" in shown.out
    filtered, state, acknowledged = shown.err.splitlines()
    assert "filter(bool) cannot follow a Feed" in filtered
    assert state.startswith("refused for a state: Feed(")
    assert acknowledged.startswith("refused to acknowledge items: acknowledge=True does not go")


def test_a_graph_that_nothing_is_wrong_with_has_nothing_said(capsys):
    assert main(["graph", PIPE]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "places"),
    [
        ([PIPE, "--workers", "0"], {"loader"}),
        ([PIPE, "--workers", "1"], {"worker", "loader"}),
        (["tests.tools.graphs:loader"], {"each of 3 workers", "loader"}),
        (["tests.tools.graphs:loader", "--workers", "5"], {"each of 5 workers", "loader"}),
        (["tests.tools.graphs:dealt"], {"dispatching process"}),
        (["tests.tools.graphs:dealt_and_doubled"], {"dispatching process", "each of 2 workers"}),
    ],
)
def test_the_number_of_workers_is_the_commands_or_the_loaders(arguments, places, capsys):
    assert main(["graph", *arguments]) == 0
    drawn = capsys.readouterr().out.splitlines()
    assert {line.partition("| ")[2] for line in drawn} == places


def test_a_file_says_its_format_and_nothing_is_printed(tmp_path, capsys):
    file = tmp_path / "graph.mmd"
    assert main(["graph", PIPE, "-o", str(file)]) == 0
    assert file.read_text().startswith("flowchart TD\n")
    assert main(["graph", PIPE, "-o", str(file), "--format", "text"]) == 0
    assert file.read_text().startswith("IterableWrapper()")
    assert capsys.readouterr().out == ""


def test_a_picture_is_drawn_without_any_other_program(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")
    file = tmp_path / "graph.svg"
    assert main(["graph", PIPE, "-o", str(file)]) == 0
    picture = ElementTree.fromstring(file.read_bytes())
    titles = [title.text for title in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert titles[:2] == ["each of 2 workers", "loader"]
    assert "map(double) | each of 2 workers" in titles
    assert main(["graph", PIPE, "--format", "svg"]) == 0
    assert capsys.readouterr().out == file.read_text()


def test_a_mistake_is_one_line_and_the_status_2(capsys, tmp_path):
    assert main(["graph", "tests.tools.graphs:pip"]) == 2
    assert capsys.readouterr().err == (
        "asyncloader graph: tests.tools.graphs has no 'pip'; did you mean pipe?\n"
    )
    assert main(["graph", PIPE, "-o", str(tmp_path / "no" / "folder.svg"), "--format", "text"]) == 2
    assert "No such file or directory" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["graph", PIPE, "--workers", "-1"])
    assert "a number of workers is 0 or more, got '-1'" in capsys.readouterr().err


def test_a_file_that_the_doctor_cannot_use_is_said_before_it_measures(capsys, tmp_path):
    missing = tmp_path / "no" / "report.html"
    assert main(["doctor", PIPE, "-o", str(missing)]) == 2
    told = capsys.readouterr()
    assert told.err == (
        f"asyncloader doctor: there is no folder {missing.parent} for report.html\n"
    )
    assert main(["doctor", PIPE, "--apply-to", str(tmp_path / "train.py")]) == 2
    assert "No such file or directory" in capsys.readouterr().err
    assert not told.out


def test_the_users_own_error_is_shown_with_its_traceback(capsys):
    assert main(["graph", "tests.tools.graphs:failing"]) == 2
    shown = capsys.readouterr().err
    assert 'raise OSError("no such data")' in shown
    assert shown.endswith("failing() failed: OSError('no such data')\n")


def test_it_is_a_module_to_be_run():
    command = [sys.executable, "-W", "error", "-m", "asyncloader", "graph", PIPE]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("IterableWrapper()")


def test_a_graph_that_cannot_be_run_says_so_in_one_line(capsys):
    assert main(["graph", "tests.tools.graphs:circle"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("asyncloader graph: pipes must not read from one another in a circle")


def test_a_file_that_says_no_format_is_not_written(tmp_path, capsys):
    file = tmp_path / "graph.png"
    assert main(["graph", PIPE, "-o", str(file)]) == 2
    assert (
        "the format of graph.png is unknown: use a name that ends in .svg, .mmd"
        in capsys.readouterr().err
    )
    assert not file.exists()
    assert main(["graph", PIPE, "-o", str(file), "--format", "svg"]) == 0
    assert file.read_text().startswith("<svg ")
    assert main(["graph", PIPE, "-o", str(tmp_path / "graph.SVG")]) == 0
    assert main(["graph", PIPE, "-o", str(tmp_path / "graph")]) == 0
    assert (tmp_path / "graph.SVG").read_text() == file.read_text()
    assert (tmp_path / "graph").read_text().startswith("IterableWrapper()")


def test_the_reference_lists_every_command(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    commands = re.search(r"\{([\w,]+)\}", capsys.readouterr().out)[1].split(",")
    listed = re.findall(r"^\| `python -m asyncloader (\w+)", REFERENCE.read_text("utf-8"), re.M)
    assert listed == commands

"""``python -m asyncloader graph``: the graph, and what runs where."""

from __future__ import annotations

import subprocess
import sys
from xml.etree import ElementTree

import pytest

from asyncloader.tools.command import main

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
    assert "graph.png does not say its format: end it in .svg, .mmd" in capsys.readouterr().err
    assert not file.exists()
    assert main(["graph", PIPE, "-o", str(file), "--format", "svg"]) == 0
    assert file.read_text().startswith("<svg ")
    assert main(["graph", PIPE, "-o", str(tmp_path / "graph.SVG")]) == 0
    assert main(["graph", PIPE, "-o", str(tmp_path / "graph")]) == 0
    assert (tmp_path / "graph.SVG").read_text() == file.read_text()
    assert (tmp_path / "graph").read_text().startswith("IterableWrapper()")

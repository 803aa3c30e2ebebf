"""Every example runs to its end and prints what it is there to show."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.stage import run_script_forked

ROOT = Path(__file__).parent.parent
#: One runs until it is told to end; tests/serving/test_inference_server.py does that. The others
#: need Ray and TRL; tests/ray/test_example.py and tests/compat/test_trl.py run them.
ELSEWHERE = {"inference_server.py", "ray_training.py", "trl_rollouts.py"}
EXAMPLES = sorted({path.name for path in (ROOT / "examples").glob("*.py")} - ELSEWHERE)
LIMIT_SECONDS = 120
#: What need not be imported anew for each.
IMPORTED = ("asyncloader", "torch", "torch._dynamo")

#: What each example prints, as a regular expression that is searched for.
PRINTS = {
    "tcp_server.py": r"500 of 500 answers are right\nan error: error: invalid literal .*\n"
    r"answered 500, failed 1\n$",
    "custom_pipe.py": r"\[2, 2, 2, 2, 2, 2, 2, 3\]\nthe same by `for`: True\n"
    r"what follows the first, after a resume: True\n$",
    "custom_service.py": (
        r"epoch 1: a to sea\n"
        r"epoch 2: a to sea wave ocean\n"
        r"epoch 3: a to sea wave ocean harbor lantern\n$"
    ),
    "distributed_training.py": r"(steps on each rank: \[20, 20\]\n){3}learnt y = 2\.0x -1\.0\n$",
    "mesh_training.py": r"^steps: 16, the same in a pair: True\nthe same in both pairs: False\n"
    r"learnt 3\.0 -2\.0 1\.0 0\.5\n$",
    "images_over_http.py": r"epoch 4: 594 of 600 images, 100% right\n$",
    "kill_a_worker.py": (
        r"workers replaced: [12]\nevery sample once, in its place: True\n"
        r"killed a worker after 100 samples\n"
        r"without restart: WorkerDied: worker [01] \(pid \d+\) was killed by SIGKILL\n$"
    ),
    "language_model_mixing.py": (
        r"of \d,\d+ documents 7[3-7]% were prose\nloss 0\.\d+ after 150 steps of 2048 tokens\n$"
    ),
    "notebook.py": r"first: (.*)\nrest: \[(.*)\]\nepoch: \[\1, \2\]\nepoch: \[\1, \2\]\n"
    r"by for: \[\1, \2\]\nwarned: RuntimeWarning\n$",
    "resume_after_crash.py": (
        r"^(loss 0\.0\d+ after 378 steps)\n"
        r"killed after step 190, in epoch 2\nresumed after step 175, in epoch 2\n"
        r"\1\nthe same to the last bit: True\n$"
    ),
    "flaky_server.py": (
        r"^(killed after \d+ prompts\n){3}trained: \d+ prompts, each once: True\n"
        r"left out: .*\d+ by filter.*\nall of 600: True\n"
        r"asked again although they were trained on: 0\n$"
    ),
    "batch_inference.py": (
        r"^(killed when \d+ answers were written\n){2}"
        r"\d+ answers, each prompt once: True, all as asked: True\n"
        r"left out after five failures: \d+\nall of 600: True\n$"
    ),
    "async_rl.py": (
        r"^killed after step 15\ntrained: \d+ prompts, each once: True\nleft out: \d+ by filter\n"
        r"all of 320: True\n(trained [01] versions later: \d+ prompts\n){1,2}"
        r"right: [1-3]\d% at first, ([6-9]\d|100)% at the end\n$"
    ),
    "other_trainers.py": (
        r"^((slime|AReaL|tinker-cookbook): 80 prompts in 10 steps, each once: True\n){3}$"
    ),
    "sync_training.py": r"learnt y = 3\.0a -2\.0b \+1\.0\n$",
    "weight_sync.py": (
        r"step 20: \d\d% of the answers are right\n"
        r"step 240: (9\d|100)% of the answers are right\n"
        r"new weights reached the actor \d+ times\n$"
    ),
    "train.py": r"final loss 0\.0\d+ after \d+ epochs at [\d,]+ items/s\n$",
}


#: How an example is started that is no plain script, as modules and their arguments.
LAUNCHERS = {
    "distributed_training.py": [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
    ],
    "mesh_training.py": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"],
}


@pytest.mark.soak
@pytest.mark.sweep
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_and_prints(name, tmp_path):
    assert name in PRINTS, f'add what it prints to PRINTS in {__file__}: "{name}": r"...",'
    assert re.search(PRINTS[name], output_of(name, tmp_path))


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_the_top_of_an_example_says_what_it_shows_how_to_start_it_and_what_to_expect(path):
    shows, _, start, expect = path.read_text(encoding="utf-8").splitlines()[:4]
    assert shows.endswith(".")
    assert re.match(rf"Start:  (python|torchrun .*) examples/{path.name}( |$)", start)
    assert expect.startswith("Expect: ")


@pytest.mark.soak
def test_the_trainers_loss_goes_down(tmp_path):
    printed = output_of("train.py", tmp_path)
    losses = [float(loss) for loss in re.findall(r"mean loss ([\d.]+)", printed)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 10


_outputs: dict[str, str] = {}


def output_of(name: str, folder: Path) -> str:
    """Return what an example prints; it is run once."""
    if name not in _outputs:
        _outputs[name] = printed_by_launcher(name) if name in LAUNCHERS else printed(name, folder)
    return _outputs[name]


def printed(name: str, folder: Path) -> str:
    script = ROOT / "examples" / name
    done = run_script_forked(folder, script, limit=LIMIT_SECONDS, imported=IMPORTED)
    assert done.returncode == 0, done.stderr
    return done.stdout


def printed_by_launcher(name: str) -> str:
    return subprocess.run(
        [sys.executable, "-W", "error", *LAUNCHERS[name], f"examples/{name}"],
        cwd=ROOT,
        timeout=LIMIT_SECONDS,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout

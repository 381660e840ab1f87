"""`penstock profile`: what is tried next and recommended, on simulated datasets; and the command, on real ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import cli
from penstock._tools.profile import run, target
from penstock._tools.profile.choice import AS_GOOD, INLINE, Advice, Choice, Limits, Trial, advice, next_choice

COMMAND = [sys.executable, "-c", "import sys; from penstock.cli import main; sys.exit(main())", "profile"]
Model = Callable[[Choice], Trial]


def tried(model: Model, limits: Limits) -> list[Trial]:
    """The trials of a dataset that behaves as the model says."""
    done: list[Trial] = []
    while (choice := next_choice(done, limits)) is not None:
        assert len(done) < 40, "it does not come to an end"
        done.append(model(choice))
    return done


def dataset(
    cpu: float = 0.0, wait: float = 0.0, gil: float = 0.0, cpus: int = 8, step: float = 0.0, overhead: float = 0.0
) -> Model:
    """Batches that take so many seconds of a processor, of waiting, and with Python's lock held; an own `overhead`
    of each process.
    """

    def model(choice: Choice) -> Trial:
        backend, workers = choice
        one = cpu + wait + gil
        if backend == "inline":
            return Trial(choice, 1 / (one + step), one / (one + step))
        made = workers / (one + (overhead if backend == "process" else 0.0))
        made = min(made, cpus / (cpu + gil)) if cpu + gil else made
        if backend == "thread" and gil:
            made = min(made, 1 / gil)
        rate = min(made, 1 / step) if step else made
        return Trial(choice, rate, 1 - rate * step)

    return model


def recommended(model: Model, limits: Limits) -> Advice:
    return advice(tried(model, limits), limits)


def test_the_plain_loop_is_tried_first() -> None:
    assert next_choice([], Limits()) == INLINE


def test_python_code_needs_as_many_processes_as_processors() -> None:
    for cpus in (2, 4, 6, 8, 16):
        found = recommended(dataset(gil=0.05, cpus=cpus), Limits(cpus))
        assert found.trial.choice == ("process", cpus)
        assert "holds the global interpreter lock" in found.reason


def test_code_that_releases_the_lock_runs_in_threads() -> None:
    found = recommended(dataset(cpu=0.05, cpus=6), Limits(6))
    assert found.trial.choice == ("thread", 6)
    assert "lock" not in found.reason


def test_waiting_is_climbed_to_the_limit_with_threads_only() -> None:
    done = tried(dataset(wait=0.05), Limits(8, most=48))
    assert max(trial.choice.workers for trial in done if trial.choice.backend == "thread") == 48
    assert max(trial.choice.workers for trial in done if trial.choice.backend == "process") == 2
    assert advice(done, Limits(8, most=48)).trial.choice == ("thread", 48)


def test_tiny_batches_are_best_made_by_the_plain_loop() -> None:
    def model(choice: Choice) -> Trial:
        return Trial(choice, 50_000 if choice == INLINE else 20_000)

    found = recommended(model, Limits(8))
    assert found.trial.choice == INLINE
    assert found.reason == (
        "The plain loop makes 50,000 batches a second, 20 µs each. Workers do not pay: 2 threads make 20,000."
    )


def test_batches_that_take_a_while_get_a_worker_though_the_plain_loop_is_as_fast() -> None:
    """On two processors, say: in training, the loader works while the step computes."""
    found = recommended(lambda choice: Trial(choice, 100.0), Limits(2))
    assert found.trial.choice == ("thread", 2) and "while your step computes" in found.reason
    assert recommended(lambda choice: Trial(choice, 100.0), Limits(1)).trial.choice == INLINE


def test_the_fewest_workers_that_keep_up_with_the_step_are_recommended() -> None:
    found = recommended(dataset(wait=0.2, step=0.05), Limits(8, step=0.05))
    assert found.trial.choice.backend == "thread" and 4 <= found.trial.choice.workers <= 6
    assert "With a step of 50 ms the loop waits for 0 % of the time: nothing is left to gain." in found.reason


def test_a_step_that_is_the_bottleneck_needs_no_further_trial() -> None:
    done = tried(dataset(wait=0.0001, step=0.05), Limits(8, step=0.05))
    assert [trial.choice for trial in done] == [INLINE]
    assert "nothing is left to gain" in advice(done, Limits(8, step=0.05)).reason


def test_a_stream_with_one_reader_is_tried_with_one_worker_of_each_kind() -> None:
    done = tried(dataset(gil=0.01), Limits(8, one_reader=True))
    assert [trial.choice for trial in done] == [INLINE, ("thread", 1), ("process", 1)]


def test_what_fails_in_workers_is_not_recommended() -> None:
    def model(choice: Choice) -> Trial:
        if choice.backend == "process":
            return Trial(choice, error="TypeError: cannot pickle")
        return Trial(choice, 10.0)

    assert recommended(model, Limits(8)).trial.choice == ("thread", 2)
    assert (
        recommended(
            lambda choice: Trial(choice, 10.0) if choice == INLINE else Trial(choice, error="no"), Limits(8)
        ).trial.choice
        == INLINE
    )


limits_ = st.builds(
    Limits,
    cpus=st.floats(0.5, 64),
    most=st.integers(1, 64),
    one_reader=st.booleans(),
    step=st.sampled_from([0.0, 0.05]),
)


@settings(max_examples=300, deadline=None)
@given(limits_, st.data())
def test_whatever_is_measured_it_ends_within_the_limits_and_recommends_one_of_the_fastest(
    limits: Limits, data: st.DataObject
) -> None:
    def model(choice: Choice) -> Trial:
        rate, waiting = data.draw(st.floats(0.01, 1e5)), data.draw(st.floats(0, 1))
        fails = choice != INLINE and data.draw(st.booleans())
        return Trial(choice, error="failed") if fails else Trial(choice, rate, waiting)

    done = tried(model, limits)
    choices = [trial.choice for trial in done]
    assert choices[0] == INLINE and len(set(choices)) == len(choices)
    most = 1 if limits.one_reader else limits.most
    assert all(choice == INLINE or 1 <= choice.workers <= most for choice in choices)
    found = advice(done, limits).trial
    assert found in done and not found.error
    rivals = done if found.choice == INLINE or limits.step else [one for one in done if one.choice.workers]
    assert found.rate >= AS_GOOD * max(trial.rate for trial in rivals)


@settings(max_examples=100, deadline=None)
@given(
    st.floats(0, 0.1), st.floats(0, 0.5), st.floats(0.0, 0.1), st.integers(1, 32), st.sampled_from([0.0, 0.02, 0.3])
)
def test_of_a_dataset_that_scales_the_advice_is_near_the_best_of_all(
    cpu: float, wait: float, gil: float, cpus: int, step: float
) -> None:
    """Beside trying all: the number of workers is found by doubling, so what is between is missed by little."""
    model, limits = dataset(cpu + 1e-3, wait, gil, cpus, step), Limits(cpus, step=step)
    best = max(model(Choice(kind, n)).rate for kind in ("thread", "process") for n in range(1, 33))
    found = recommended(model, limits)
    assert found.trial.rate >= 0.75 * max(best, model(INLINE).rate)


def test_the_words_of_a_choice() -> None:
    words = [str(Choice(*each)) for each in (("inline", 0), ("thread", 1), ("process", 1), ("process", 8))]
    assert words == ["the plain loop", "1 thread", "1 process", "8 processes"]


# The names that are given.


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a module and a program."""
    (tmp_path / "shelf.py").write_text(
        textwrap.dedent("""
            import time
            import numpy as np

            class Numbers:
                def __init__(self, n=64):
                    self.n = n
                def __len__(self):
                    return self.n
                def __getitem__(self, key):
                    return np.full(4, key)

            class Waiting(Numbers):
                def __getitem__(self, key):
                    time.sleep(0.005)
                    return super().__getitem__(key)

            class Needy(Numbers):
                def __init__(self, n):
                    self.n = n

            class Box:
                inner = Numbers(8)

            class CallableNumbers(Numbers):
                def __call__(self):
                    raise AssertionError("a dataset is not called")

            numbers, callable_numbers, nothing = Numbers(), CallableNumbers(), 44

            def make():
                return Numbers(16)

            class Model:
                def __call__(self, *arguments):
                    raise TypeError("forward() needs x")

            model = Model()

            def failing():
                raise LookupError("no such shelf")

            arrays = {"x": np.zeros(3)}

            def stack(samples):
                return np.stack(samples)

            def fail(samples):
                raise ZeroDivisionError("in collate")
        """)
    )
    (tmp_path / "broken.py").write_text("import os\nraise KeyError('no config')\n")
    (tmp_path / "lacking.py").write_text("import surely_not_installed\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != ""])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("shelf:numbers", 64),
        ("shelf:Numbers", 64),
        ("shelf:make", 16),
        ("shelf:Box.inner", 8),
        ("shelf:callable_numbers", 64),
        ("shelf.py:make", 16),
        ("{folder}/shelf.py:numbers", 64),
    ],
)
def test_a_dataset_is_an_object_a_class_or_a_function(folder: Path, name: str, length: int) -> None:
    assert len(target.dataset(name.format(folder=folder))) == length


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shelf", "'shelf' does not name an object. Write module:name"),
        ("shelf:", "does not name an object"),
        (":numbers", "does not name an object"),
        ("shelf:number", "shelf has no 'number'. It has: Box, CallableNumbers,"),
        ("shelf:nothing", "is not a dataset: it is of type int, which has neither __getitem__ nor __iter__"),
        ("shelf:model", "is not a dataset: it is of type Model, .* Name the dataset"),
        ("shelf:Needy", "shelf:Needy is called without arguments, but needs some: missing a required"),
        ("shelves:numbers", "There is no module shelves in"),
        ("shelf.books:numbers", "There is no module shelf.books in|not a package"),
        ("shelves.py:numbers", "There is no file shelves.py in"),
    ],
)
def test_a_name_of_nothing_says_what_to_do(folder: Path, name: str, message: str) -> None:
    with pytest.raises(target.TargetError, match=message):
        target.dataset(name)


@pytest.mark.parametrize(
    ("name", "kind", "hint"),
    [
        ("broken:numbers", KeyError, "while broken was imported"),
        ("broken.py:numbers", KeyError, "while broken.py was imported"),
        ("lacking:numbers", ModuleNotFoundError, "while lacking was imported"),
        ("shelf:failing", LookupError, "write a function without arguments"),
    ],
)
def test_an_error_of_the_module_comes_out_as_it_is_with_a_hint(
    folder: Path, name: str, kind: type[Exception], hint: str
) -> None:
    with pytest.raises(kind) as raised:
        target.dataset(name)
    assert hint in raised.value.__notes__[-1]


# The command.


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    return subprocess.run([*COMMAND, *arguments], cwd=folder, env=environment, capture_output=True, text=True)


def test_the_command_prints_a_table_the_settings_and_the_reason(folder: Path) -> None:
    ran = command(folder, "shelf:make", "--batch-size", "4", "--seconds", "0.1", "--collate", "shelf:stack")
    assert (ran.returncode, ran.stderr) == (0, "")
    lines = ran.stdout.splitlines()
    assert re.match(r"workers +batches/s +samples/s +speed-up +waiting +first batch", lines[0])
    kinds = [line[:14].strip() for line in lines[1 : lines.index("")]]
    assert kinds[0] == "the plain loop" and {"2 threads", "2 processes"} <= set(kinds)
    assert sum("<- use this" in line for line in lines) == 1
    assert any(line.startswith("use      penstock.DataLoader(dataset, batch_size=4, num_workers=") for line in lines)
    assert any(line.startswith("because  ") for line in lines)


def test_the_verdict_names_no_more_workers_than_allowed(folder: Path) -> None:
    ran = command(folder, "shelf:Waiting", "--batch-size", "1", "--seconds", "0.6", "--max-workers", "2")
    assert (ran.returncode, ran.stderr) == (0, "") and "verdict" in ran.stdout
    assert {int(number) for number in re.findall(r"num_workers=(\d+)", ran.stdout)} <= {1, 2}


def test_the_page_of_the_recommended_settings_is_written(folder: Path) -> None:
    ran = command(folder, "shelf:make", "--seconds", "0.1", "--max-workers", "1", "--html", "page.html")
    assert (ran.returncode, ran.stderr) == (0, "") and ran.stdout.split()[-2:] == ["page", "page.html"]
    page = (folder / "page.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and "DataLoader(Numbers)" in page


def test_a_page_that_could_not_be_written_is_refused_before_the_trials(folder: Path) -> None:
    for path in ("no/such/folder.html", "."):
        ran = command(folder, "shelf:make", "--html", path)
        assert ran.returncode == 2 and f"and {path} is not" in ran.stderr


def test_with_a_step_the_caller_is_found_to_be_the_bottleneck(folder: Path) -> None:
    ran = command(folder, "shelf:Numbers", "--seconds", "0.5", "--step", "0.1", "--batch-size", "8")
    assert ran.returncode == 0
    # How many trials that takes depends on what else this machine does.
    assert re.search(r"With a step of 100 ms the loop waits for [<\d.]+ % of the time", " ".join(ran.stdout.split()))


def test_an_error_of_a_sample_or_of_collate_comes_out_as_it_is(folder: Path) -> None:
    ran = command(folder, "shelf:make", "--seconds", "0.1", "--collate", "shelf:fail")
    assert ran.returncode == 1
    assert "ZeroDivisionError: in collate" in ran.stderr and "in fail" in ran.stderr


def test_a_wrong_name_is_a_short_error(folder: Path) -> None:
    ran = command(folder, "shelf:number")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("penstock profile: shelf has no 'number'.") and "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("shelf:model", "penstock profile: shelf:model is not a dataset"),
        ("shelf:Needy", "penstock profile: shelf:Needy is called without arguments"),
        ("shelf:arrays", "penstock profile: shelf:arrays cannot be loaded. TypeError: The dataset is a dict"),
    ],
)
def test_where_no_code_of_the_user_s_failed_there_is_no_traceback(folder: Path, name: str, said: str) -> None:
    ran = command(folder, name, "--batch-size", "1", "--seconds", "0.05")
    assert ran.returncode in (1, 2) and "Traceback" not in ran.stderr
    assert ran.stderr.startswith(said)


def test_an_empty_dataset_says_so(folder: Path) -> None:
    (folder / "empty.py").write_text("data = []\n")
    ran = command(folder, "empty:data")
    assert ran.returncode == 1 and "the dataset gives no batch: is it empty?" in ran.stderr


@pytest.mark.parametrize("bad", [["--seconds", "0"], ["--step", "-1"], ["--batch-size", "0"], ["--seconds", "nan"]])
def test_a_number_out_of_range_is_refused(bad: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["profile", "shelf:make", *bad])
    assert bad[0] in capsys.readouterr().err


def test_a_trial_of_workers_that_fails_is_a_row_of_the_table() -> None:
    class Local(penstock.Dataset[Any]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, key: int) -> Any:
            if penstock.get_worker_info() is not None:
                raise OSError("not in a worker")
            return np.zeros(2)

    subject = run.Subject(Local(), 4, None, 0.05, 0.0)
    plain, stats = run.try_out(subject, INLINE, lambda part: None)
    assert plain.rate > 0 and stats is not None and stats.life.batches > 0
    failed, nothing = run.try_out(subject, Choice("thread", 2), lambda part: None)
    assert failed.error == "OSError: not in a worker" and nothing is None


def test_the_settings_are_a_call() -> None:
    subject = run.Subject(None, 64, None, 1.0, 0.0)
    assert run.settings(Choice("thread", 4), subject) == (
        'penstock.DataLoader(dataset, batch_size=64, num_workers=4, backend="thread")'
    )
    assert run.settings(INLINE, subject) == "penstock.DataLoader(dataset, batch_size=64, num_workers=0)"


def test_for_a_dataset_of_a_guest_the_settings_for_its_loader_are_given_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loader has processes only, and would refuse the threads that are recommended."""
    trials = [Trial(INLINE, 10.0), Trial(Choice("thread", 4), 40.0), Trial(Choice("process", 2), 20.0)]
    trials += [Trial(Choice("process", 3), 30.0), Trial(Choice("process", 4), error="it crashed")]
    subject = run.Subject(type("Data", (), {"__module__": "torch.utils.data"})(), 64, None, 1.0, 0.0)
    (text,) = run._of_its_guest(subject, trials)
    assert text.startswith("penstock.torch.DataLoader(dataset, batch_size=64, num_workers=3), whose workers are proc")
    assert text.endswith(": 30 batches a second.")
    assert list(run._of_its_guest(subject, trials[:2])) == []
    assert list(run._of_its_guest(run.Subject(range(3), 64, None, 1.0, 0.0), trials)) == []

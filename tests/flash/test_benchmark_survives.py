"""The benchmark keeps its measurements after any failure and records the reasons of missing ones."""

import itertools
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from benchmark_cases import PROBLEMS, SIZES, NoGpu

from benchmarks import flash_gpu, tune_flash
from benchmarks.gpu import checks, parts, report, results, rivals, steps, supervision, timing
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.machine import Machine, Rehearsal
from benchmarks.gpu.parts import LOST, NOTHING, UNMEASURED, WHOLE, WRONG, Item, run
from benchmarks.gpu.record import Record, give_up, read, write
from benchmarks.gpu.tiles import candidates, tile_text
from lessons_lib.flash.configurations import Tile

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def single_precision(double_precision):
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def bench(tmp_path):
    return Bench(NoGpu(), Record(tmp_path / "part.json", {}), 5, SIZES)


class PtxasError(Exception):
    """An exception that is no RuntimeError, as Triton's are."""


def rows_of(bench, machine, everyone=None) -> dict[tuple[str, str], dict]:
    bench.machine, rows = machine, []
    everyone = everyone or rivals.plain(bench, True, 64, 16)
    timing.time_shape(bench, "item", rows, everyone, 64, 16, True)
    return {(row["implementation"], row["pass"]): row for row in rows}


# --- errors of kernels ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), PtxasError("internal\nmore"), ValueError("")])
def test_other_implementations_are_timed_if_the_kernels_fail(bench, error):
    class Failing(NoGpu):
        def trouble(self, call, **options):
            if call == "flash":
                raise error

    found = rows_of(bench, Failing())
    assert found["triton", "forward"]["reason"].startswith(f"{type(error).__name__}: ")
    assert found["triton", "backward"]["reason"] == "its forward pass did not run"
    assert "\n" not in found["triton", "forward"]["reason"]
    assert found["naive", "forward"]["milliseconds"] == found["tiled", "backward"]["milliseconds"] == 2.0
    speeds = timing.with_speeds([{"item": "item", **row} for row in found.values()])
    assert not any("speed_of_triton" in row for row in speeds)


def test_failed_profile_keeps_the_time(bench):
    class Blind(NoGpu):
        def launched(self, work):
            return Machine.launched(self, work)  # on the CPU the profiler sees no kernel

        def extra_mib(self, work):
            raise PtxasError("no statistics")

    row = rows_of(bench, Blind())["triton", "forward"]
    assert row["milliseconds"] == 2.0
    assert row["kernel"].startswith("unknown: ")
    assert row["extra_mib_unknown"] == "PtxasError: no statistics"


def test_empty_profile_reports_an_unknown_kernel(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.profiler, "ProfilerActivity", type("", (), {"CUDA": torch.profiler.ProfilerActivity.CPU}))
    assert Machine().launched(lambda: None) == {"kernel": "unknown: the profiler saw none"}


def test_triton_version_comes_from_the_module(monkeypatch):
    nightly = type(sys)("triton")
    nightly.__version__ = "3.9.0+git1234"  # the package is called pytorch-triton
    monkeypatch.setitem(sys.modules, "triton", nightly)
    assert Machine().versions()["triton"] == "3.9.0+git1234"
    monkeypatch.setitem(sys.modules, "triton", None)
    assert Machine().versions()["triton"] is None


def test_forward_time_is_kept_if_backward_fails(bench):
    class OneWay(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            return q + k + v

        @staticmethod
        def backward(ctx, grad):
            raise RuntimeError("no execution plan")

    found = rows_of(bench, NoGpu(), {"triton": OneWay.apply})
    assert found["triton", "forward"]["milliseconds"] == 2.0
    assert found["triton", "backward"]["reason"] == "RuntimeError: no execution plan"
    assert found["triton", "forward+backward"]["reason"] == "RuntimeError: no execution plan"


def test_failure_in_second_round_is_recorded_with_the_first_time(bench):
    class Tired(NoGpu):
        turns = 0

        def trouble(self, call, **options):
            self.turns += call == "time"
            if self.turns == 4:
                raise RuntimeError("out of memory")

    row = rows_of(bench, Tired(), {"triton": lambda q, k, v: q * k * v})["triton", "forward"]
    assert row["rounds"] == [2.0]
    assert row["failed_once"] == "RuntimeError: out of memory"


def test_lost_device_is_attributed_to_its_item_only(bench):
    class Lost(NoGpu):
        def trouble(self, call, **options):
            if call == "flash":
                self.lost = "an illegal memory access was encountered"
                raise RuntimeError(self.lost)

    found = rows_of(bench, Lost())
    assert found["triton", "forward"]["reason"] == "RuntimeError: an illegal memory access was encountered"
    reason = found["naive", "forward"]["reason"]
    assert reason.startswith("the device was lost while triton ran: RuntimeError")


def test_failed_matmul_measurement_is_left_out(bench):
    class Failing(NoGpu):
        failed = False

        def trouble(self, call, **options):
            if call == "time" and not self.failed:
                self.failed = True
                raise RuntimeError("out of memory")

    row = rows_of(bench, Failing(), {"triton": lambda q, k, v: q * k * v})["triton", "forward"]
    assert row["milliseconds"] == 2.0
    assert "of_matmul" not in row
    assert bench.record.content["left_out"] == {"matmul_tflops": "RuntimeError: out of memory"}


def test_decoding_continues_without_sdpa_backend_or_cuda_graph(bench):
    class NoGraphs(NoGpu):
        def trouble(self, call, **options):
            if call == "captured":
                raise RuntimeError("operation not permitted when stream is capturing")

    bench.machine, rows = NoGraphs(), []
    timing.time_decoding(bench, "item", rows, rivals.decoders(bench, 128), b=2, d=128)
    found = {row["implementation"]: row for row in rows}
    assert found["triton"]["kernel"] == "nothing"
    keys_and_values = 2 * (2 * 8 * SIZES.cache * 128) * 2  # bytes
    assert found["triton"]["gb_per_s"] == pytest.approx(keys_and_values / 2e-3 / 1e9, rel=1e-4)
    assert "capturing" in found["triton-graph"]["reason"]


# --- the loop -------------------------------------------------------------------------------------------------------


def items(*measures) -> list[Item]:
    return [Item(f"item {i}", measure, 0.0) for i, measure in enumerate(measures)]


def fine(rows: list) -> None:
    rows.append({"milliseconds": 1.0})


def fails(rows: list) -> None:
    rows.append({"before": True})
    raise PtxasError("no")


def hour() -> float:
    return time.monotonic() + 3600


def test_record_is_valid_json_after_every_item(bench):
    seen = []

    def look(rows: list) -> None:
        seen.append(json.loads(bench.record.path.read_text()))

    assert run(iter(items(fine, look, fails, look)), bench, hour()) == WHOLE
    assert [len(content["rows"]) for content in seen] == [1, 3]
    assert [content["running"]["item"] for content in seen] == ["item 1", "item 3"]
    assert bench.record.rows[1:] == [{"item": "item 2", "before": True}, {"item": "item 2", "reason": "PtxasError: no"}]
    assert bench.record.content["done"]["item 0"]["state"] == {"sm_mhz": 1980.0}
    assert not list(bench.record.path.parent.glob(".*"))


def test_unfinished_draft_is_ignored(tmp_path, monkeypatch):
    path = tmp_path / "part.json"
    write(path, {"rows": [1]})
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write(path, {"rows": [1, 2]})
    assert read(path) == {"rows": [1]}
    path.write_text('{"rows": [')
    assert read(path) is None


def test_stopped_run_keeps_its_rows_and_can_be_continued(bench):
    def stopped(rows: list) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(iter(items(fine, stopped, fine)), bench, hour())
    record = Record(bench.record.path, {})
    assert list(record.content["done"]) == ["item 0"]
    again = Bench(NoGpu(), record, 5, SIZES)
    calls = []
    assert run(iter(items(calls.append, fine, fine)), again, hour()) == WHOLE
    assert not calls
    assert list(record.content["done"]) == ["item 0", "item 1", "item 2"]


def test_items_without_time_are_listed(bench):
    wanted = [Item("quick", fine, 1.0), Item("slow", fine, 900.0), Item("quick too", fine, 1.0)]
    assert run(iter(wanted), bench, time.monotonic() + 60) == UNMEASURED
    assert list(bench.record.content["done"]) == ["quick", "quick too"]
    assert bench.record.content["left_out"]["slow"].endswith("it needs 900 s")
    assert Record(bench.record.path, {}).content["left_out"] == {}


def test_only_option_selects_items(bench):
    run(iter(items(fine, fine)), bench, hour(), only="item 1")
    assert list(bench.record.content["done"]) == ["item 1"]


def test_share_takes_every_nth_item(bench):
    items = [Item(f"item {i}", lambda rows: rows.append({"milliseconds": 1.0})) for i in range(7)]
    run(iter(items), bench, time.monotonic() + 100, share=(1, 3))
    assert list(bench.record.content["done"]) == ["item 1", "item 4"]


def test_lost_device_ends_the_run_and_keeps_the_item(bench):
    def loses(rows: list) -> None:
        bench.machine.lost = "an illegal memory access was encountered"
        raise RuntimeError(bench.machine.lost)

    assert run(iter(items(fine, loses, fine)), bench, hour()) == LOST
    assert list(bench.record.content["done"]) == ["item 0", "item 1"]
    assert "illegal" in bench.record.rows[-1]["reason"]


@pytest.mark.parametrize("key", ["device", "kernels", "tiles", "versions"])
def test_record_of_other_kernels_is_renamed(tmp_path, key):
    about = {"part": "d64", "device": "a", "kernels": {}, "tiles": [], "versions": {}}
    first = Record(tmp_path / "d64.json", about)
    first.add("x", [{"milliseconds": 1.0}])
    assert Record(tmp_path / "d64.json", about).has("x")
    assert not Record(tmp_path / "d64.json", about | {key: ["other"]}).has("x")
    assert read(tmp_path / "d64.before.json")["rows"] == [{"item": "x", "milliseconds": 1.0}]


# --- processes that die ---------------------------------------------------------------------------------------------

CHILD = """
import json, os, signal, sys, time
path, kind = sys.argv[1:3]
content = json.load(open(path)) if os.path.exists(path) else {"rows": [], "done": {}, "left_out": {}, "running": None}
def save():
    with open(path + ".draft", "w") as file:
        json.dump(content, file)
    os.replace(path + ".draft", path)
for name in ("first", "second", "third"):
    if name in content["done"]:
        continue
    content["running"] = {"item": name, "since": time.time()}
    save()
    if name == "second":
        if kind == "segfault": os.kill(os.getpid(), signal.SIGSEGV)
        if kind == "hang": time.sleep(60)
        if kind == "traceback": raise SystemExit(1)
    content["rows"].append({"item": name})
    content["done"][name] = {}
    content["running"] = None
    save()
    if name == "second" and kind == "lost": raise SystemExit(4)
raise SystemExit(2 if kind == "wrong" else 0)
"""


@pytest.mark.parametrize(
    ("kind", "status", "reason"),
    [
        ("nothing", WHOLE, None),
        ("wrong", WRONG, None),
        ("lost", WHOLE, None),
        ("segfault", WHOLE, "the process that measured it ended: SIGSEGV"),
        ("traceback", WHOLE, "the process that measured it ended: exit status 1"),
        ("hang", WHOLE, "it took longer than 1 s"),
    ],
)
def test_dead_process_loses_one_item(tmp_path, kind, status, reason):
    path, child = tmp_path / "part.json", tmp_path / "child.py"
    child.write_text(CHILD)
    command = [sys.executable, "-I", str(child), str(path), kind]
    patience = 1.0 if kind == "hang" else 600.0
    assert supervision.watch(command, path, 1200, item_seconds=patience, poll=0.02) == status
    content = read(path)
    assert list(content["done"]) == ["first", "second", "third"]
    assert content["rows"][1] == {"item": "second"} | ({} if reason is None else {"reason": reason})


def test_process_that_never_starts_is_not_restarted_forever(tmp_path):
    command = [sys.executable, "-I", "-c", "raise SystemExit(7)"]
    assert supervision.watch(command, tmp_path / "part.json", 60, poll=0.02) == LOST


def test_process_over_its_time_is_killed(tmp_path, monkeypatch):
    path, child = tmp_path / "part.json", tmp_path / "child.py"
    child.write_text(CHILD)

    hangs = []

    def until_it_hangs() -> float:
        running = (read(path) or {}).get("running")
        hangs.extend([True] if running and running["item"] == "second" else [])
        return 1000.0 if hangs else 0.0

    clock = SimpleNamespace(monotonic=until_it_hangs, time=time.time, sleep=time.sleep)
    monkeypatch.setattr(supervision, "time", clock)  # the time is over as soon as the second item starts
    command = [sys.executable, "-I", str(child), str(path), "hang"]
    assert supervision.watch(command, path, 600, poll=0.02) == UNMEASURED
    assert "the time was over" in read(path)["rows"][1]["reason"]


def test_process_ends_with_its_supervisor(tmp_path):
    child, path = tmp_path / "child.py", tmp_path / "part.json"
    child.write_text(
        "import importlib.util, os, sys, time\n"
        f"sys.path[:0] = [{str(ROOT)!r}]\n"
        "sys.modules['benchmarks.gpu.parts'] = type(sys)('parts')  # the real module imports PyTorch\n"
        "sys.modules['benchmarks.gpu.parts'].__dict__.update(LOST=4, NOTHING=1, UNMEASURED=3, WHOLE=0, WRONG=2)\n"
        "from benchmarks.gpu.supervision import end_with_parent, watch\n"
        "if '--watched' in sys.argv:\n"
        "    end_with_parent()\n"
        f"    open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "    time.sleep(60)\n"
        f"else: watch([sys.executable, '-I', __file__], __import__('pathlib').Path({str(path)!r}), 60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-I", str(child)])
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    pid = int((tmp_path / "pid").read_text())
    parent.kill()
    parent.wait()
    wait_for(lambda: not is_running(pid))


def wait_for(condition) -> None:
    end = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")  # a process whose parent has died may remain as a zombie
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] not in "ZX"


def test_give_up_without_running_item_returns_none(tmp_path):
    assert give_up(tmp_path / "nothing.json", "x") is None
    write(tmp_path / "part.json", {"running": None})
    assert give_up(tmp_path / "part.json", "x") is None


# --- the steps ------------------------------------------------------------------------------------------------------


@pytest.fixture
def simulated(monkeypatch, tmp_path):
    """Return a function that runs the command without a GPU, with small problems and small target sizes."""
    monkeypatch.setattr(checks, "PROBLEMS", PROBLEMS)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)  # PyTorch's compiler takes seconds
    monkeypatch.setattr(torch.compiler, "reset", lambda: None)
    places = {"decode": lambda target: target.places, "flex": lambda target: SIZES.flex_lengths}
    monkeypatch.setattr(
        report,
        "TARGETS",
        tuple(t._replace(places=places.get(t.part, lambda _: SIZES.lengths)(t)) for t in report.TARGETS),
    )
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")

    def main(*arguments: str, machine: NoGpu | None = None, of=flash_gpu) -> int:
        options = {} if of is tune_flash else {"script": None}
        return of.main(
            [*arguments, "--out", str(tmp_path / "out"), "--seed", "3"], machine or NoGpu(), SIZES, **options
        )

    main.out, main.results = tmp_path / "out", tmp_path / "results"
    return main


@pytest.mark.thorough
def test_every_step_runs_and_results_are_joined(simulated, capsys):
    own, tile, *_ = candidates("attend", 128, (9, 0))
    for number in steps.STEPS:
        assert simulated("--step", str(number), machine=NoGpu(fast=tile)) in (WHOLE, UNMEASURED, WRONG)
    written = {path.stem for path in simulated.out.glob("*.json")}
    assert written == set(parts.PARTS) - {"short"}
    said = capsys.readouterr().out
    own, tile = (tile_text(("attend", 128), each) for each in (own, tile))
    assert f"--tile {tile}  x2.000" in said
    assert re.search(rf"^{tile} +1\.0000 ms  x2\.000$", said, re.MULTILINE)
    assert re.search(rf"^{own} +2\.0000 ms  x1\.000 \(the library\)$", said, re.MULTILINE)
    assert "triton-tuned" in said
    assert all(read(path)["running"] is None for path in simulated.out.glob("*.json"))
    assert read(simulated.out / "checks.json")["seed"] == 3

    before = {path.name: path.read_text() for path in simulated.out.glob("d*.json")}
    simulated()  # everything is measured already
    assert {path.name: json.loads(path.read_text())["rows"] for path in simulated.out.glob("d*.json")} == {
        name: json.loads(text)["rows"] for name, text in before.items()
    }
    result = read(simulated.results / "flash-nvidia-nothing-1.json")
    assert {row["part"] for row in result["rows"]} == set(results.TABLES)
    assert {row["implementation"] for row in result["rows"]} >= {"triton", "naive", "tiled", "flex", "sdpa-cudnn"}
    assert {row["d"] for row in result["rows"]} == {64, 128, 256}
    ruled = {(row["rule"], row["implementation"]) for row in result["rows"] if row["part"] == "rules"}
    named = itertools.product(("causal", "documents", "prefix"), ("triton", "triton-band", "sdpa-mask", "flex"))
    assert ruled == set(named) - {("causal", "flex")}
    assert {row["implementation"] for row in result["rows"] if row.get("table_seconds")} == {"triton"}
    assert result["wrong"] == []


def test_wrong_kernels_are_timed_and_reported_as_wrong(simulated, monkeypatch):
    class Wrong(NoGpu):
        def flash(self, q, k, v, *, window=None, **options):
            return super().flash(q, k, v, window=window and window - 1, **options)

    monkeypatch.setattr(checks, "REGRESSIONS", ())
    assert simulated("--part", "checks", machine=Wrong()) == WRONG
    simulated("--part", "d64", machine=Wrong())
    assert len(read(simulated.out / "checks.json")["rows"]) == len(PROBLEMS) * 3
    assert simulated("--merge") == WRONG
    result = read(simulated.results / "flash-nvidia-nothing-1.json")
    assert len(result["wrong"]) == 3 * sum("window" in problem for problem in PROBLEMS)
    assert all("window=" in name for name in result["wrong"])


def test_lost_part_continues_on_the_next_run(simulated):
    class Lost(NoGpu):
        def trouble(self, call, **options):
            if call == "flash" and options["q"].shape[2] == 32:
                self.lost = "an illegal memory access was encountered"
                raise RuntimeError(self.lost)

    assert simulated("--part", "d64", machine=Lost()) == LOST
    assert simulated("--part", "d64", machine=Lost()) == LOST
    assert simulated("--part", "d64") in (UNMEASURED, WRONG)
    content = read(simulated.out / "d64.json")
    assert len(content["done"]) == 4
    assert sum("illegal" in row.get("reason", "") for row in content["rows"] if row["implementation"] == "triton") == 2


def test_tuner_continues_after_failing_and_wrong_tiles(simulated):
    class Picky(NoGpu):
        def flash(self, q, k, v, *, tiles=None, **options):
            if tiles is not None and tiles.attend == Tile(128, 64, 8, 4):
                raise PtxasError("out of resource: shared memory")
            found = super().flash(q, k, v, tiles=tiles, **options)
            wrong = tiles is not None and tiles.attend == Tile(64, 64, 4, 3)
            return (2 * found[0], found[1]) if wrong and isinstance(found, tuple) else found

    machine = Picky(fast=Tile(64, 64, 4, 3))
    assert simulated("--kernel", "attend:128", machine=machine, of=tune_flash) == WHOLE
    rows = read(simulated.out / "tune.json")["rows"]
    reasons = {row["tile"]: row["reason"] for row in rows if "reason" in row}
    assert reasons["attend:128=128,64,8,4"] == "PtxasError: out of resource: shared memory"
    assert reasons["attend:128=64,64,4,3"].startswith("wrong: its relative error is")
    own = tile_text(("attend", 128), candidates("attend", 128, (9, 0))[0])
    assert [row["winner"] for row in rows if "winner" in row] == [own]  # nothing is faster
    assert steps.winners(simulated.out / "tune.json") == {}
    assert all("milliseconds" in row for row in rows if row.get("again"))


def test_tuner_lists_items_without_time(simulated, monkeypatch):
    assert simulated("--kernel", "attend_part:64", "--seconds", "5", of=tune_flash) == NOTHING
    left = read(simulated.out / "tune.json")["left_out"]
    assert "again attend_part:64" in left
    assert "it needs 10 s" in left["attend_part:64=16,128,4,3"]


def test_versions_of_the_kernels_are_timed_in_turns(simulated, tmp_path, capsys):
    order = []

    def start(part, seconds, name, library):
        order.append((part, name, library))
        row = {"d": 64, "is_causal": True, "n": 16, "pass": "forward", "milliseconds": 1.0 if library else 1.5}
        write(simulated.out / f"{name}.json", {"rows": [row, {"reason": "no"}]})
        return WHOLE

    other = tmp_path / "other"
    steps.versions(steps.Options(out=simulated.out), lambda *how: start("short", 1, *how), other)
    assert [library for _, _, library in order] == [None, other, other, None]
    assert "d  64 causal n     16 forward           x1.500" in capsys.readouterr().out


def test_kernels_are_compiled_by_several_processes_before_a_step(monkeypatch):
    started = []
    monkeypatch.setattr(steps, "run_together", lambda commands, seconds: started.append((commands, seconds)))
    options = steps.Options(jobs=3, tiles=("attend:64=128,64,8,3",))
    steps.run_step(1, options, lambda *how: started.append(how), script=Path("flash_gpu.py"))
    (commands, seconds), (first, *_), *_ = started
    assert (len(commands), seconds, first) == (3, steps.STEPS[1].seconds / 2, "checks")
    asked = [flash_gpu.arguments(command[2:]) for command in commands]
    assert [each.share for each in asked] == [(0, 3), (1, 3), (2, 3)]
    assert len({each.out for each in asked}) == 3
    assert all((each.part, each.tile) == (["checks"], list(options.tiles)) for each in asked)  # no sanitizer


@pytest.mark.parametrize(("jobs", "chosen"), [(1, ["checks"]), (3, ["sanitizer", "counters", "plain"])])
def test_nothing_is_compiled_beforehand(jobs, chosen, monkeypatch):
    monkeypatch.setattr(steps, "run_together", lambda commands, seconds: pytest.fail("it was"))
    steps.rehearse(Path("flash_gpu.py"), steps.Options(jobs=jobs), chosen, 10.0)


def test_processes_that_compile_end_in_time(tmp_path):
    def write_then(rest: str, name: str) -> list[str]:
        return [sys.executable, "-c", f"open({str(tmp_path / name)!r}, 'w'); {rest}"]

    endless = "\nimport time\nwhile True: time.sleep(1)"
    supervision.run_together([write_then(endless, "slow"), write_then("pass", "fast")], 2.0)
    assert (tmp_path / "fast").exists()


def test_rehearsal_makes_each_call_once(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    made, machine = [], Rehearsal()
    machine.time(lambda: made.append(1))
    assert made == [1]
    assert (machine.launched(made.clear), machine.extra_mib(made.clear), made) == ({}, 0.0, [1])


@pytest.mark.parametrize("text", ["3/3", "0", "a/2", "-1/2", "1/0"])
def test_invalid_share_ends_with_a_message(text, capsys):
    with pytest.raises(SystemExit):
        flash_gpu.arguments([f"--share={text}"])
    assert f"a share is I/N with I below N, got {text!r}" in capsys.readouterr().err


def test_supervised_part_receives_all_options(monkeypatch, tmp_path):
    watched = []
    monkeypatch.setattr(steps, "watch", lambda command, path, seconds: watched.append((command, path, seconds)) or 0)
    options = steps.Options(
        out=tmp_path, seed=7, tiles=("attend:64=64,64,4,2",), tuned=Path("t.json"), only="n 16", commit="abc"
    )
    assert steps.supervised(Path("script.py"), options)("short", 30.0, "there-1", Path("other")) == 0
    ((command, path, seconds),) = watched
    asked = flash_gpu.arguments(command[2:])
    assert (path, seconds) == (tmp_path / "there-1.json", 30.0)
    assert (asked.part, asked.name, asked.library, asked.seed) == (["short"], "there-1", Path("other"), 7)
    assert (asked.tile, asked.tuned, asked.only, asked.commit) == (
        ["attend:64=64,64,4,2"],
        Path("t.json"),
        "n 16",
        "abc",
    )

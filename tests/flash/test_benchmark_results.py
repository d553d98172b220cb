"""Result files: the measured code, whether it has changed since, and whether the targets are met."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from benchmark_cases import SIZES, NoGpu

from benchmarks import flash_gpu
from benchmarks.gpu import report, results, sources, steps
from benchmarks.gpu.parts import NOTHING, UNMEASURED, WHOLE, WRONG
from benchmarks.gpu.record import read, write

ROOT = Path(__file__).resolve().parents[2]
BATCHES = (1, 4, 16)


def rows(n: int, ours: float, theirs: float, of_matmul: float = 0.6, **other) -> list[dict]:
    """Return the rows of one shape of width 128 as a part writes them; ``sdpa-cudnn`` did not run."""
    shape = {"item": f"n {n}", "d": 128, "n": n, "is_causal": False, "pass": "forward", **other}
    return [
        {"implementation": "triton", **shape, "milliseconds": ours, "of_matmul": of_matmul},
        {"implementation": "sdpa-flash", **shape, "milliseconds": theirs, "of_matmul": 0.5},
        {"implementation": "sdpa-cudnn", **shape, "reason": "No available kernel."},
    ]


def judged(measured: list[dict], part: str = "d128") -> dict[str, dict]:
    """Return the verdicts on the forward pass of width 128 without a mask, by rival."""
    from benchmarks.gpu.timing import with_speeds

    found = report.judge(with_speeds([row | {"part": part} for row in measured]))
    return {
        one["against"]: one for one in found if (one["pass"], one["d"], one["is_causal"]) == ("forward", 128, False)
    }


# --- targets --------------------------------------------------------------------------------------------------------


def test_target_uses_the_slowest_long_sequence():
    measured = rows(1024, 1.0, 0.1) + rows(4096, 2.0, 3.0) + rows(8192, 2.0, 2.5) + rows(16384, 1.0, 3.0)
    found = judged(measured)
    assert {rival: verdict["reached"] for rival, verdict in found.items()} == {
        "sdpa-flash": 1.25,
        "matmul": 0.6,
        "sdpa-cudnn": None,
    }
    assert {rival: verdict["verdict"] for rival, verdict in found.items()} == {
        "sdpa-flash": "met",
        "matmul": "met",
        "sdpa-cudnn": "unmeasured",
    }
    assert "met        forward d 128 full of sdpa-flash            1.25, wanted 1.20" in report.verdicts(found.values())
    assert report.verdicts([found["sdpa-cudnn"]]).split()[0] == "unmeasured"


def test_target_needs_every_length_to_be_met_and_one_to_be_missed():
    assert judged(rows(4096, 2.0, 3.0) + rows(8192, 2.0, 3.0))["sdpa-flash"]["verdict"] == "unmeasured"
    assert judged(rows(4096, 2.0, 3.0) + rows(8192, 2.0, 3.0))["sdpa-flash"]["missing"] == [16384]
    assert judged(rows(4096, 2.0, 2.3))["sdpa-flash"]["verdict"] == "missed"


def test_target_ignores_rows_of_other_parts():
    measured = [row for n in (4096, 8192, 16384) for row in rows(n, 2.0, 3.0)]
    assert judged(measured, "baseline")["sdpa-flash"]["verdict"] == "unmeasured"


@pytest.mark.parametrize(("of_copy", "verdict"), [(0.71, "met"), (0.69, "missed"), (None, "unmeasured")])
def test_decoding_targets_are_per_batch_size(of_copy, verdict):
    shape = {"implementation": "triton", "pass": "decode", "d": 128, "part": "decode"}
    measured = [{**shape, "b": b, **({} if of_copy is None else {"of_copy": of_copy})} for b in (4, 16)]
    found = {one["b"][0]: one["verdict"] for one in report.judge(measured, ["decode"])}
    assert found == {1: "unmeasured", 4: verdict, 16: verdict}


def test_every_target_has_a_measuring_part():
    assert {target.part for target in report.TARGETS} <= set(results.KEPT)
    assert [one["pass"] for one in report.judge([], ["d256"])] == ["forward"]


# --- the exit status ------------------------------------------------------------------------------------------------


def content(part: str, measured: list[dict], began: float = 1.0, **other) -> dict:
    """Return the content of the file of a part."""
    about = {"part": part, "began": began, "device": "NVIDIA X", "versions": {"torch": "2"}, "commit": None}
    about |= {"kernels": sources.fingerprint(), "tiles": [], "seed": 3, "date": "2026-11-22"}
    about |= {"rates": {"matmul_tflops": [700.0, 720.0, 710.0]}, "done": {}, "left_out": {}, "running": None}
    return about | {"rows": [{"item": "x", **row} for row in measured]} | other


DECODED = [
    {"implementation": "triton", "pass": "decode", "d": 128, "b": b, "milliseconds": 1.0, "of_copy": 0.8}
    for b in BATCHES
]


@pytest.mark.parametrize(
    ("measured", "left_out", "status"),
    [
        (DECODED, {}, WHOLE),
        ([], {}, NOTHING),
        (DECODED[:2], {}, UNMEASURED),
        (DECODED, {"b 16": "no time"}, UNMEASURED),
        ([*DECODED, {"implementation": "triton", "reason": "no"}], {}, UNMEASURED),
        ([*DECODED, {"implementation": "sdpa-flash", "reason": "no"}], {}, WHOLE),
        ([DECODED[0] | {"of_copy": 0.1}, *DECODED[1:]], {"b 16": "no time"}, WRONG),
    ],
)
def test_status_of_a_part(measured, left_out, status):
    assert results.status([content("decode", measured, left_out=left_out)], ["decode"]) == status


@pytest.mark.parametrize(
    ("row", "status"),
    [
        ({"right": True}, WHOLE),
        ({"right": False}, WRONG),
        ({"reason": "it raised"}, WRONG),
        ({"unmeasured": "memory"}, UNMEASURED),
    ],
)
def test_status_of_the_checks(row, status):
    assert results.status([content("checks", [row])], ["checks"]) == status


def test_status_of_missing_parts_and_failed_tiles():
    assert results.status([content("decode", DECODED)], ["decode", "plain"]) == UNMEASURED
    assert results.status([content("tune", [{"tile": "attend:64=1,2,3,4", "reason": "no"}])], ["tune"]) == WHOLE


# --- joining the parts ----------------------------------------------------------------------------------------------


def test_join_combines_the_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    early, late = tmp_path / "early", tmp_path / "late"
    write(early / "d128.json", content("d128", rows(4096, 2.0, 3.0), seed=1))
    write(early / "decode.json", content("decode", DECODED, began=2.0))
    write(late / "d128.json", content("d128", rows(8192, 2.0, 3.0), began=3.0))
    write(late / "tune.json", content("tune", [{"tile": "attend:64=1,2,3,4"}], began=4.0))
    write(late / "checks.json", content("checks", [{"right": False, "item": "odd widths"}], began=3.5))
    assert flash_gpu.main(["--merge", str(early), str(late)]) == WRONG
    result = read(tmp_path / "results" / "flash-nvidia-x.json")
    assert {row["n"] for row in result["rows"]} == {8192}
    assert [row["speed_of_triton"] for row in result["rows"] if "milliseconds" in row] == [1.0, 1.5]
    assert [row["b"] for row in result["decode"]] == [1, 4, 16]
    assert result["wrong"] == ["odd widths"]
    assert result["matmul_tflops"] == 710.0
    assert result["seeds"] == {"checks": 3, "d128": 3, "decode": 3}
    assert result["unmeasured"]["d256"] == "it was not run"
    assert result["stale"] is None


def test_chapter_reads_the_fields_that_the_benchmark_writes(tmp_path, monkeypatch, capsys):
    from lessons_lib.page import plots

    monkeypatch.setattr(results, "FOLDER", tmp_path)
    flash_gpu.main(["--part", "d128", "--out", str(tmp_path / "parts")], NoGpu(), SIZES)
    flash_gpu.main(["--merge", str(tmp_path / "parts")])
    drawn = []
    monkeypatch.setattr(plots, "lines", lambda n, y, **_: drawn.append((n.tolist(), y)))
    cells = {cell["id"]: "".join(cell["source"]) for cell in read(ROOT / "book/efficient/flash.ipynb")["cells"]}
    names = {"torch": torch, "plots": plots, "json": json, "results": tmp_path, "file": tmp_path / "flash-cpu.json"}
    for cell in ("measured-curves", "record-gpu-read", "measured-gpu-record"):
        exec(cells[cell], names)
    said = capsys.readouterr().out
    assert "NVIDIA Nothing 1" in said
    assert "wrong: [], unmeasured: {" in said
    [(n, rates)] = drawn
    assert n == [16, 32]
    assert set(rates["triton"].shape) == {2}
    fields = set(re.findall(r"`(\w+)`", cells["record-text"])) - {"seconds", "left_out"}
    result = read(tmp_path / "flash-nvidia-nothing-1.json")
    assert fields <= set(result) | {key for row in result["rows"] for key in row}


def test_join_without_parts_raises(tmp_path, capsys):
    assert flash_gpu.main(["--merge", str(tmp_path)]) == NOTHING
    assert "nothing was measured" in capsys.readouterr().err


def test_join_leaves_out_parts_with_other_kernels_or_tiles():
    one, other = content("decode", DECODED, began=2.0), content("d64", rows(4096, 1.0, 1.0), kernels={"x": "1"})
    tiled = content("d128", rows(4096, 1.0, 1.0), began=3.0, tiles=["attend:128=64,64,4,3"])
    result = results.join([other, tiled, one])
    assert result["rows"] == []
    assert result["unmeasured"]["d64"] == "measured with other kernels than decode"
    assert result["unmeasured"]["d128"] == "measured with other tiles than decode"
    with pytest.raises(ValueError, match="there is nothing to join"):
        results.join([tiled])


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H200", "flash-nvidia-h200.json"),
        ("NVIDIA GeForce RTX 4090 (Laptop)", "flash-nvidia-geforce-rtx-4090-laptop.json"),
    ],
)
def test_file_name_contains_the_device(device, name):
    assert results.file_name(device) == name


# --- sources --------------------------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path):
    """Create a repository with the kernels and one commit."""
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / sources.FLASH, root / sources.FLASH, ignore=shutil.ignore_patterns("__pycache__"))
    for command in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root


def edit(root: Path, name: str, old: str, new: str) -> None:
    path = root / sources.FLASH / name
    source = path.read_text()
    assert old in source
    path.write_text(source.replace(old, new, 1))


def test_fingerprint_covers_every_file_of_the_kernels(checkout):
    files = {Path(name).stem for name in sources.fingerprint(checkout)}
    assert files >= {"autograd", "triton_kernels", "configurations", "band"}
    assert not files & {"tiled", "sdpa", "validation", "reference", "__init__"}
    assert sources.fingerprint(checkout) == sources.fingerprint()


@pytest.mark.parametrize(
    ("name", "old", "new", "changed"),
    [
        ("triton_kernels.py", '"""FlashAttention in Triton', '"""Attention in Triton', []),
        ("triton_kernels.py", "# --- forward -", "# --- there -", []),
        ("triton_kernels.py", "LOG2_E = ", "\n\nLOG2_E = ", []),
        ("triton_kernels.py", "1.4426950408889634", "1.4426950408889635", ["lessons_lib/flash/triton_kernels.py"]),
        ("configurations.py", "Tile(128, 128, 8, 2)", "Tile(128, 64, 8, 2)", ["lessons_lib/flash/configurations.py"]),
        ("tiled.py", "import", "import ", []),
    ],
)
def test_fingerprint_ignores_comments_and_docstrings(checkout, name, old, new, changed):
    before = sources.fingerprint(checkout)
    edit(checkout, name, old, new)
    assert sources.changed(before, checkout) == changed


def test_commit_marks_changed_kernels(checkout, tmp_path):
    head = sources.commit(checkout)
    assert len(head) == 40
    edit(checkout, "autograd.py", "ROW_BLOCK = 128", "ROW_BLOCK = 256")
    assert sources.commit(checkout) == head + "+"
    assert sources.commit(tmp_path) is None


def test_join_fills_in_the_commit_if_the_kernels_match(checkout):
    part = content("decode", DECODED, kernels=sources.fingerprint(checkout))
    assert results.join([part], checkout)["commit"] == sources.commit(checkout)
    assert results.join([part | {"commit": "abc"}], checkout)["commit"] == "abc"
    edit(checkout, "autograd.py", "ROW_BLOCK = 128", "ROW_BLOCK = 256")
    assert results.join([part], checkout)["commit"] is None


def test_mark_flags_results_with_changed_kernels(checkout, tmp_path):
    result = results.join([content("decode", DECODED, commit="abc", kernels=sources.fingerprint(checkout))], checkout)
    write(tmp_path / "flash-x.json", result)
    write(tmp_path / "flash-cpu.json", {"rows": []})
    assert results.mark(tmp_path, checkout) == []
    edit(checkout, "autograd.py", "ROW_BLOCK = 128", "ROW_BLOCK = 256")
    assert results.mark(tmp_path, checkout) == ["flash-x.json"]
    said = "measured at commit abc; since then the kernels have changed: lessons_lib/flash/autograd.py"
    assert read(tmp_path / "flash-x.json")["stale"] == said
    assert results.mark(tmp_path, checkout) == []
    edit(checkout, "autograd.py", "ROW_BLOCK = 256", "ROW_BLOCK = 128")
    assert results.mark(tmp_path, checkout) == ["flash-x.json"]
    assert read(tmp_path / "flash-x.json")["stale"] is None


def committed() -> list[Path]:
    return [path for path in sorted(results.FOLDER.glob("flash-*.json")) if "kernels" in (read(path) or {})]


def test_committed_results_have_the_correct_stale_flag():
    for path in committed():
        result = read(path)
        assert result["stale"] == results.stale(result), (
            f"{path.name} is wrong about its age: measure anew, or run python benchmarks/flash_gpu.py --mark"
        )


def test_committed_results_match_their_commit():
    for path in committed():
        result = read(path)
        if not result["commit"] or "+" in result["commit"] or "," in result["commit"]:
            continue
        for name, digest in result["kernels"].items():
            shown = ["git", "show", f"{result['commit']}:{name}"]
            found = subprocess.run(shown, cwd=ROOT, capture_output=True, text=True, check=False)
            if found.returncode == 0:  # a shallow clone does not have it
                assert sources.digest(found.stdout) == digest, f"{path.name} was not measured at {result['commit']}"


def test_mark_command_prints_the_marked_files(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    write(tmp_path / "flash-x.json", {"kernels": {"gone.py": "1"}, "commit": None, "stale": None})
    assert flash_gpu.main(["--mark"], NoGpu()) == 0
    assert capsys.readouterr().out == "flash-x.json\n"
    assert read(tmp_path / "flash-x.json")["stale"].startswith("measured at commit unknown; since then the kernels")


# --- the guide and the chapter --------------------------------------------------------------------------------------


def test_make_gpu_runs_all_steps_or_one():
    make = ["make", "--no-print-directory", "-n", "gpu"]  # a nested make prints its folder
    for arguments, command in (([], ""), (["STEP=5"], " --step 5")):
        said = subprocess.run([*make, *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
        assert said.stdout.splitlines()[-1] == f".venv/bin/python benchmarks/flash_gpu.py{command}"


def test_step_durations_match_the_guide():
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    assert "It takes under an hour, in six steps of at most nine minutes" in guide
    assert len(steps.STEPS) == 6
    assert max(step.seconds for step in steps.STEPS.values()) <= 9 * 60
    assert sum(step.seconds for step in steps.STEPS.values()) < 55 * 60  # a process may run longer


def test_steps_measure_every_kept_part():
    assert set(results.KEPT) == {part for number in (1, 5, 6) for part in steps.STEPS[number].parts}


def test_commands_in_the_guide_parse():
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    commands = re.findall(r"python3? benchmarks/flash_gpu.py (.+?)(?: +#|`|$)", guide, re.MULTILINE)
    assert len(commands) >= 3
    for command in commands:
        flash_gpu.arguments(shlex.split(command))


@pytest.mark.parametrize("stale", [None, "measured at commit abc; since then the kernels have changed: x.py"])
def test_chapter_plots_results_and_prints_their_problems(tmp_path, capsys, stale):
    measured = [row for n in (1024, 4096) for row in rows(n, 2.0, 3.0)]
    measured = [row | ({"tflops": 400.0} if "milliseconds" in row else {}) for row in measured]
    parts = [content("d128", measured), content("checks", [{"right": False, "item": "odd widths"}])]
    parts.append(content("plain", [measured[0] | {"implementation": "naive", "n": 1024}]))
    write(tmp_path / "flash-x.json", results.join(parts) | {"stale": stale})
    cells = json.loads((ROOT / "book/efficient/flash.ipynb").read_text())["cells"]
    drawn, names = [], {"results": tmp_path, "file": tmp_path / "flash-cpu.json", "json": json, "torch": torch}
    names["plots"] = SimpleNamespace(lines=lambda n, y, **labels: drawn.append((n.tolist(), y)))
    for name in ("measured-curves", "record-gpu-read", "measured-gpu-record"):
        exec("".join(next(cell for cell in cells if cell.get("id") == name)["source"]), names)
    ((n, y),) = drawn
    assert n == [1024, 4096]
    assert {name: line.tolist() for name, line in y.items()} == {"triton": [400.0] * 2, "sdpa-flash": [400.0] * 2}
    said = capsys.readouterr().out
    assert (stale or "the kernels have not changed since") in said
    assert "wrong: ['odd widths'], unmeasured: {'sanitizer': 'it was not run'" in said

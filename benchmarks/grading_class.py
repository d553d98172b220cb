"""Measure what grading a class takes: time, memory and disk, with the command and the sandbox that an instructor uses.

The class is made by varying the one of ``tests/grading/students.py``. Each of its kinds is there once, those that hang,
hoard and dig included (in a small class every other student is one of them); the others are honest: right, wrong or
empty in each exercise by a seeded draw, in names of their own, half of them with the model answer's search. Limits are
the defaults.

Memory is what ``/proc`` says once a second of the command and all that it has started: resident for one process, its
proportional share (PSS) for all of them together. Processor time is added up from the same samples, so of each process
up to a second is missing. The load is the machine's own average over a minute: what else ran there counts too, and
then seconds say more of the machine than of the command.

``python benchmarks/grading_class.py --students 40 --jobs 2`` adds a run to ``benchmarks/results/grading-class.json``;
with ``--parts 5`` the class is graded in parts, one after the other, and joined, each of which is a run.
"""

import argparse
import copy
import datetime
import json
import os
import platform
import random
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from benchmarks.records import ROOT, processor

RESULT = ROOT / "benchmarks" / "results" / "grading-class.json"
NAME, CODE = "scaling", ("scale", "softmax", "backward")
TICK = os.sysconf("SC_CLK_TCK")


def honest(draw: random.Random, released: NotebookNode, master: NotebookNode, right: dict[str, str]) -> NotebookNode:
    """Hand in what a student might who is up to nothing."""
    mistakes = {"scale": "math.sqrt", "softmax": " - scores.amax(dim=-1, keepdim=True)", "backward": "math.sqrt"}
    texts: dict[str, str] = {"moments": f"The mean is 0, I think; the variance is {draw.random():.2f} times $d_k$."}
    for name in CODE:
        kind = draw.choices(("right", "wrong", "empty"), (75, 20, 5))[0]
        if kind != "empty":
            texts[name] = right[name] if kind == "right" else right[name].replace(mistakes[name], "")
            texts[name] = texts[name].replace("shifted", f"part{draw.randrange(99)}").replace("back_to", "d_of")
    if draw.random() < 0.5:
        texts |= {cell.id: cell.source for cell in master.cells if cell.id.startswith("needle")}
    notebook = copy.deepcopy(released)
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("solution"):
            cell.source = texts.get(cell.id, cell.source)
    return notebook


def hand_in(course: Path, n: int) -> dict[str, str]:
    """Write the submissions of a class of ``n``; return what kind of student each is."""
    sys.path.insert(0, str(ROOT / "tests" / "grading"))
    kinds = runpy.run_path(str(ROOT / "tests" / "grading" / "students.py"))
    released = nbformat.read(ROOT / "book" / "exercises" / NAME / f"{NAME}.ipynb", as_version=4)
    master = nbformat.read(ROOT / "assignments" / "source" / NAME / f"{NAME}.ipynb", as_version=4)
    draw, all_kinds = random.Random(0), list(kinds["CLASS"].items())
    source = course / "source" / NAME / f"{NAME}.ipynb"
    source.parent.mkdir(parents=True)
    nbformat.write(master, source)
    who: dict[str, str] = {}
    every = max(2, n // len(all_kinds))
    for i in range(n):
        student = f"student {i:03}_id{10_000 + i}"
        nth, place = divmod(i, every)
        kind, made = all_kinds[nth] if place == every - 1 and nth < len(all_kinds) else ("honest", None)
        notebook = made.hands_in(released) if made else honest(draw, released, master, kinds["RIGHT"])
        text = notebook if isinstance(notebook, str) else nbformat.writes(notebook)
        file = course / "submitted" / student / NAME / f"{NAME}.ipynb"
        file.parent.mkdir(parents=True)
        file.write_text(text.replace("PORT", "9").replace("COURSE", "/nowhere").replace("REPOSITORY", "/nowhere"))
        for other, content in made.beside.items() if made else ():
            file.with_name(other).write_text(content)
        who[student] = kind
    return who


class Watch:
    """What a command and everything that it has started use, as far as somebody looks."""

    def __init__(self, pid: int):
        self.pid = pid
        self.seconds: dict[tuple[int, str], float] = {}
        self.resident: dict[str, int] = defaultdict(int)  # KiB, by what the process is
        self.together = self.at_once = 0  # KiB, processes
        self.load: list[float] = []

    def look(self) -> None:
        """Take a sample."""
        found = _descendants(self.pid)
        shared = 0
        for pid in found:
            try:
                after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                memory = _kib(Path(f"/proc/{pid}/smaps_rollup").read_text())
                command = Path(f"/proc/{pid}/cmdline").read_text()
            except OSError:  # it has ended
                continue
            self.seconds[pid, after_name[19]] = (int(after_name[11]) + int(after_name[12])) / TICK
            kind = "kernel" if "ipykernel_launcher" in command and "bwrap" not in command else "grading"
            self.resident[kind] = max(self.resident[kind], memory.get("Rss", 0))
            shared += memory.get("Pss", 0)
        self.together, self.at_once = max(self.together, shared), max(self.at_once, len(found))
        self.load.append(os.getloadavg()[0])


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            children[int(path.read_text().rpartition(")")[2].split()[1])].append(int(path.parent.name))
    found = [pid]
    for one in found:
        found += children[one]
    return found


def _kib(rollup: str) -> dict[str, int]:
    return {line.split(":")[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}


def size(course: Path, *places: str) -> float:
    """Return the MiB of files below some places of a course."""
    files = [path for place in places for path in (course / place).rglob("*")] + [course / place for place in places]
    return round(sum(path.stat().st_size for path in files if path.is_file()) / 2**20, 2)


def measure(course: Path, command: list[str], finished: Callable[[], bool]) -> dict:
    """Run the command; say what it took, and after how many seconds it was ``finished``."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    start, after = time.monotonic(), 0.0
    with (course / "said.txt").open("w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env=environment)
        watch = Watch(process.pid)
        while process.poll() is None:
            watch.look()
            if not after and finished():
                after = time.monotonic() - start
            time.sleep(1)
    seconds = time.monotonic() - start
    if process.returncode:
        raise SystemExit(f"the command ended with {process.returncode}:\n{(course / 'said.txt').read_text()[-3000:]}")
    return {
        "seconds": {"grading": round(after or seconds), "feedback and report": round(seconds - after if after else 0)},
        "processor_seconds": round(sum(watch.seconds.values())),
        "peak_MiB": {
            "one grading process, resident": round(watch.resident["grading"] / 1024),
            "one kernel, resident": round(watch.resident["kernel"] / 1024),
            "all together, proportional": round(watch.together / 1024),
        },
        "processes_at_once": watch.at_once,
        "load": round(statistics.mean(watch.load), 1),
    }


def grade(course: Path, jobs: int, option: list[str], folder: Path) -> dict:
    """Run the command once; ``folder`` is where it writes what it has graded."""
    command = [sys.executable, "-m", "grading", NAME, "--course", str(course), "--jobs", str(jobs), *option]
    run = {"jobs": jobs} | measure(course, command, (folder / "feedback").is_dir)
    results = json.loads((folder / "report" / NAME / "results.json").read_text(encoding="utf-8"))
    run |= {"graded": len(results), "not_graded": sum(bool(one["reason"]) for one in results.values())}
    places = ("checked", "autograded"), ("gradebook.db",), ("report",), ("feedback",)
    return run | {"MiB": {" and ".join(some): size(folder, *some) for some in places}}


def main() -> None:
    """Make a class, grade it, and add the run, or those of its parts, to the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--students", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        course = Path(folder).resolve()
        kinds = list(hand_in(course, arguments.students).values())
        (course / "seed").write_text("271828\n")
        about = {"students": arguments.students, "honest": kinds.count("honest")}
        if arguments.parts == 1:
            add(arguments.out, about | grade(course, arguments.jobs, [], course))
            return
        for k in range(1, arguments.parts + 1):
            part = f"{k}/{arguments.parts}"
            work = course / "parts" / NAME / f"{k}-of-{arguments.parts}"
            add(arguments.out, about | {"part": part} | grade(course, arguments.jobs, ["--part", part], work))
        add(arguments.out, about | {"part": "joined"} | grade(course, arguments.jobs, ["--join"], course))


def add(out: Path, run: dict) -> None:
    """Add a run to the record."""
    before = json.loads(out.read_text(encoding="utf-8"))["runs"] if out.is_file() else []
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    report = {
        "command": "python benchmarks/grading_class.py",
        "device": f"{processor()}, {os.cpu_count()} cores, {platform.system()}",
        "versions": {"python": platform.python_version()},
        "assignment": NAME,
        "runs": [*before, run | {"date": datetime.date.today().isoformat(), "commit": commit}],
    }
    out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(run, indent=2), flush=True)


if __name__ == "__main__":
    main()

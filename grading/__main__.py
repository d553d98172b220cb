"""Grade the submissions of an assignment: check, run in a sandbox, report.

    python -m grading scaling

Submissions are expected at submitted/STUDENT/scaling/scaling.ipynb in assignments/; the results are written to
report/scaling/ and feedback/. Run it again with --report after grading by hand. What cannot be graded is reported
with its reason and gets no points, not even zero.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from grading.course import ASSIGNMENTS, Course, configure
from grading.hand_back import write_zip
from grading.processes import in_processes
from grading.report import Result, exercises, write_report
from grading.sandbox import lent_folder, why_not


def grade(course: Course, students: list[str], limits: dict) -> dict[str, Result]:
    """Grade submissions; return what came of it by student, without the points of those that were graded."""
    try:
        course.load_master()
    except ValueError as error:
        raise SystemExit(str(error)) from error
    for _, complaint in in_processes(course.check_master, [course.name], **limits):
        if complaint:
            raise SystemExit(f"the model answers do not pass their own checks, so nobody was graded: {complaint}")
    results: dict[str, Result] = {}
    for student, came in progress("graded", course.grade, students, limits):
        results[student] = came if isinstance(came, Result) else Result(reason=came)
    for student, result in results.items():
        if result.reason:
            course.drop(student)
    return results


def progress(verb: str, task: Callable[[str], Any], students: list[str], limits: dict):
    """Run a task for each student and show how far it is."""
    return tqdm(in_processes(task, students, **limits), total=len(students), desc=verb, unit="student")


def main(argv: list[str] | None = None) -> int:
    """Grade one assignment."""
    parser = argparse.ArgumentParser(
        prog="python -m grading", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="the assignment, a folder of assignments/source")
    parser.add_argument("--course", type=Path, default=ASSIGNMENTS, help="the folder of source/ and submitted/")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--report", action="store_true", help="grade nothing, write report and feedback anew")
    which.add_argument(
        "--student", action="append", help="grade this one, leave the others as they are; may be repeated"
    )
    parser.add_argument("--without-sandbox", action="store_true", help="run students' code with your own rights")
    parser.add_argument("--cell-seconds", type=int, default=60, help="time for one cell (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=600, help="time for one notebook (default: %(default)s)")
    parser.add_argument("--memory", type=float, default=4, help="GiB for one notebook (default: %(default)s)")
    parser.add_argument(
        *("--jobs", "--at-a-time"), dest="at_a_time", type=int, default=2, help="processes (default: %(default)s)"
    )
    arguments = parser.parse_args(argv)
    if not (arguments.course / "source" / arguments.name / f"{arguments.name}.ipynb").is_file():
        parser.error(f"there is no master source/{arguments.name}/{arguments.name}.ipynb in {arguments.course}")
    if arguments.report and not (arguments.course / "report" / arguments.name / "results.json").is_file():
        parser.error(f"{arguments.name} has not been graded yet: leave out --report")
    if not (arguments.report or arguments.without_sandbox) and (reason := why_not()):
        parser.error(f"{reason}. Students' code would run with your rights; --without-sandbox accepts that")
    there = {path.parent.name for path in (arguments.course / "submitted").glob(f"*/{arguments.name}")}
    wanted = set(arguments.student or there) or {"STUDENT"}
    if not arguments.report and (missing := sorted(wanted - there)):
        place = f"submitted/{missing[0]}/{arguments.name}/{arguments.name}.ipynb"
        parser.error(f"nobody's work is at {place} in {arguments.course}")

    folder = arguments.course.resolve()
    config = configure(
        folder,
        cell_seconds=arguments.cell_seconds,
        gib=arguments.memory,
        sandbox=not arguments.without_sandbox,
    )
    try:
        course = Course(folder, arguments.name, config)
    except ValueError as error:
        parser.error(str(error))
    if os.geteuid() == 0 and not (arguments.report or arguments.without_sandbox):
        print("You grade as root: a hole in the sandbox would be a hole in this machine.", file=sys.stderr)
    limits = {"at_a_time": arguments.at_a_time, "seconds": arguments.seconds, "log": course.logs / "kernels.txt"}
    with lent_folder() as scratch:  # also for what a process that was killed leaves behind
        tempfile.tempdir = str(scratch)
        if not arguments.report:
            course.write_results(grade(course, sorted(wanted), limits), beside_others=bool(arguments.student))
        results = course.results()
        anew = [s for s, result in results.items() if not result.reason and s in (arguments.student or results)]
        for student, reason in progress("feedback", course.write_feedback, anew, limits):
            results[student].notes += [reason] if reason else []
        asked = exercises(course.master())
        about = {"members": course.members, "canvas_column": course.canvas_column}
        table = write_report(course.report, course.name, results, asked, **about)
        _, without = write_zip(folder, course.name, [student for student in results if not results[student].reason])
    tempfile.tempdir = None
    print(table)
    print(f"\nMore in {course.report}, and for the students in {folder / 'feedback'}.")
    if without:
        print(f"Not in feedback.zip, since no zip of submissions had them: {', '.join(without)}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

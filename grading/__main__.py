"""Grade the submissions of an assignment: check, run in a sandbox, report.

    python -m grading scaling

Submissions are expected at submitted/STUDENT/scaling/scaling.ipynb in assignments/; the results are written to
report/scaling/ and feedback/. Run it again with --report after grading by hand. A submission that cannot be graded is
reported with the reason and gets no points, not even zero. A group is graded once, and every member gets its points.
If grading was interrupted, or new submissions have arrived, --rest grades the students who are not graded yet.

Time limits count processor time. A cell and a notebook may take five times as long in wall-clock time. A submission
that exceeds that is tried once more, alone, if the machine was busy; after that it waits for a person.

A large class can be graded in parts, on several machines: --part 1/5 to --part 5/5, and then --join.
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
from grading.feedback_zip import write_zip
from grading.groups import feedback_names, results_by_member
from grading.processes import run_in_processes
from grading.report import Result, exercises, write_report
from grading.sandbox import sandbox_error, temporary_folder
from grading.sharding import JoinError, Part, conditions, join, prepare, write_part_file


def grade(course: Course, students: list[str], limits: dict, *, beside_others: bool = False) -> None:
    """Grade submissions and write each result as soon as it is known, so that an interrupted run can continue."""
    if not students and beside_others:
        return
    try:
        course.load_master()
    except ValueError as error:
        raise SystemExit(str(error)) from error
    for _, complaint in run_in_processes(course.check_master, [course.name], **limits):
        if complaint:
            raise SystemExit(f"the model answers do not pass their own checks, so nobody was graded: {complaint}")
    if not beside_others:
        course.write_results({}, beside_others=False)
    for student, came in progress("graded", course.grade, students, limits):
        result = came if isinstance(came, Result) else Result(reason=str(came))
        if result.reason:
            course.drop(student)
        course.add_result(student, result)


def progress(verb: str, task: Callable[[str], Any], students: list[str], limits: dict):
    """Run a task for each student and show a progress bar."""
    return tqdm(run_in_processes(task, students, **limits), total=len(students), desc=verb, unit="student")


def report(course: Course, limits: dict, only: list[str] | None = None) -> None:
    """Write the feedback and the report, and print the report's table.

    ``only`` restricts the feedback that is written to these students; the report always covers the whole class.
    """
    results = course.results()
    anew = [s for s, result in results.items() if not result.reason and (only is None or s in only)]

    def write_feedback(student: str) -> str | None:
        return course.write_feedback(student, results[student])

    for student, reason in progress("feedback", write_feedback, anew, limits):
        results[student].notes += [reason] if reason else []
    found = course.groups()
    ways: dict[str, str | None] = {}
    for group in found:
        course.share_feedback(group)
        ways |= feedback_names(course.folder, course.name, group)
    results = results_by_member(results, found)
    about = {"members": course.members, "canvas_column": course.canvas_column}
    table = write_report(course.report, course.name, results, exercises(course.master()), **about)
    graded = [student for student in results if not results[student].reason]
    _, without = write_zip(course.folder, course.name, graded, ways)
    print(table)
    print(f"\nMore in {course.report}, and for the students in {course.folder / 'feedback'}.")
    if without:
        print(f"Not in feedback.zip, since no zip of submissions had them: {', '.join(without)}.")
    print("".join(f"{notice}\n" for notice in course.notices()), end="")


def parse(argv: list[str] | None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Parse the command line and exit with an error if the arguments do not fit the course folder."""
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
    which.add_argument("--rest", action="store_true", help="grade who is not graded yet, leave the others as they are")
    which.add_argument("--part", metavar="K/N", help="grade the K-th of N parts of the class, without report")
    which.add_argument("--join", action="store_true", help="grade nothing, join the parts, write report and feedback")
    parser.add_argument("--without-sandbox", action="store_true", help="run students' code with your own rights")
    parser.add_argument(
        "--cell-seconds", type=int, default=60, help="of processor time for one cell (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=int, default=600, help="of processor time for one notebook (default: %(default)s)"
    )
    parser.add_argument("--memory", type=float, default=4, help="GiB for one notebook (default: %(default)s)")
    parser.add_argument(
        *("--jobs", "--at-a-time"), dest="at_a_time", type=int, default=2, help="processes (default: %(default)s)"
    )
    arguments = parser.parse_args(argv)
    if not (arguments.course / "source" / arguments.name / f"{arguments.name}.ipynb").is_file():
        parser.error(f"there is no master source/{arguments.name}/{arguments.name}.ipynb in {arguments.course}")
    if arguments.report and not (arguments.course / "report" / arguments.name / "results.json").is_file():
        parser.error(f"{arguments.name} has not been graded yet: leave out --report")
    runs = not (arguments.report or arguments.join)
    if runs and not arguments.without_sandbox and (reason := sandbox_error()):
        parser.error(f"{reason}. Students' code would run with your rights; --without-sandbox accepts that")
    return parser, arguments


def main(argv: list[str] | None = None) -> int:
    """Grade one assignment."""
    parser, arguments = parse(argv)
    name, runs = arguments.name, not (arguments.report or arguments.join)
    submitted = {path.parent.name for path in (arguments.course / "submitted").glob(f"*/{name}")}
    if runs and not submitted:
        place = f"submitted/{(arguments.student or ['STUDENT'])[0]}/{name}/{name}.ipynb"
        parser.error(f"there is no submission {place} in {arguments.course}")

    folder, only = arguments.course.resolve(), bool(arguments.student or arguments.rest)
    about = {"cell_seconds": arguments.cell_seconds, "gib": arguments.memory, "sandbox": not arguments.without_sandbox}
    under = {**about, "seconds": arguments.seconds}
    try:
        part = Part(arguments.part) if arguments.part else None
        work = prepare(part, folder, name) if part else folder
        course = Course(folder, name, configure(folder, work=work, **about))
        wanted, found = course.works([course.named(one) for one in arguments.student or submitted])
        if arguments.rest:
            wanted = sorted(set(wanted) - set(course.read_results()))
        if runs and (missing := sorted(set(wanted) - submitted)):
            place = f"submitted/{missing[0]}/{name}/{name}.ipynb"
            parser.error(f"there is no submission {place} in {arguments.course}")
    except ValueError as error:
        parser.error(str(error))
    if os.geteuid() == 0 and runs and not arguments.without_sandbox:
        print("You are grading as root: code that escapes from the sandbox would have root's rights.", file=sys.stderr)
    limits = {"at_a_time": arguments.at_a_time, "seconds": arguments.seconds, "log": course.logs / "kernels.txt"}
    with temporary_folder() as scratch:  # also removes the temporary files of a process that was killed
        tempfile.tempdir = str(scratch)
        try:
            if part:
                students, current = part.of(wanted), conditions(folder, name, under)
                grade(course, students, limits)
                write_part_file(part, course, students, current)
                print(
                    f"{len(students)} of {len(wanted)} are in part {part}, in {course.work}.",
                    *course.notices(),
                    sep="\n",
                )
                return 0
            if arguments.join:
                course.write_results(join(course, under), beside_others=False)
            elif runs:
                grade(course, wanted, limits, beside_others=only)
                for group in found:
                    course.drop_uncounted(group)
            report(course, limits, wanted if only else None)
        except JoinError as error:
            parser.error(str(error))
        finally:
            tempfile.tempdir = None
    return 0


if __name__ == "__main__":
    sys.exit(main())

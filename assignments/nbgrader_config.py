"""nbgrader's configuration, read by nbgrader when it is started in this folder, and by ``python -m grading``."""

import os
import sys
from pathlib import Path

c = get_config()  # nbgrader provides it
HERE = Path(__file__).resolve().parent
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # nbgrader calls alembic by name

c.CourseDirectory.root = str(HERE)
c.CourseDirectory.course_id = "attention"
c.CourseDirectory.release_directory = str(HERE.parent / "book" / "exercises")
c.IncludeHeaderFooter.header = str(HERE / "source" / "header.ipynb")
c.ClearSolutions.code_stub = {"python": "raise NotImplementedError  # your code here"}
c.ClearSolutions.text_stub = "*Your answer here.*"

c.GenerateAssignment.preprocessors.insert(0, "grading.draw_numbers.DrawNumbers")  # numbers of questions on paper
c.GenerateAssignment.preprocessors.append("grading.release.AddAssignmentName")  # to recognise a wrong notebook

c.ZipCollectApp.collector_plugin = "grading.collect.CourseSystemCollector"  # finds the owner of each file

# Graded cells do not run in the process of the students' code, and hidden tests stay hidden in the feedback.
c.Autograde.autograde_preprocessors = [
    "grading.executor.ExecuteWithOutsideChecks",
    "nbgrader.preprocessors.LimitOutput",
    "nbgrader.preprocessors.SaveAutoGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
    "grading.sanitize.Sanitize",
    "nbgrader.preprocessors.CheckCellMetadata",
]
c.HTMLExporter.preprocessors = ["grading.formgrader.AddModelAnswers"]  # in Formgrader, never in the feedback
c.AddModelAnswers.course = str(HERE)
c.GenerateFeedback.preprocessors = [
    "grading.feedback_page.AddSummary",
    "grading.executor.HideTests",
    "nbconvert.preprocessors.CSSHTMLHeaderPreprocessor",
]
c.ExecuteWithOutsideChecks.timeout = 60  # seconds for a cell, after which an endless loop is stopped
if (seed := HERE / "seed").exists():
    c.ExecuteWithOutsideChecks.seed_shift = int(seed.read_text())

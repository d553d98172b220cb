"""What nbgrader needs to know: it reads this file when started in this folder, and ``python -m grading`` does."""

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

c.GenerateAssignment.preprocessors.append("grading.release.Named")  # a wrong notebook is told by the name

c.ZipCollectApp.collector_plugin = "grading.collect.FromCourseSystem"  # whose file is which in a zip of submissions

# Graded cells do not run where the students' code runs, and what they hide stays hidden in the feedback.
c.Autograde.autograde_preprocessors = [
    "grading.outside.CheckedFromOutside",
    "nbgrader.preprocessors.LimitOutput",
    "nbgrader.preprocessors.SaveAutoGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
    "grading.clean.Cleaned",
    "nbgrader.preprocessors.CheckCellMetadata",
]
c.GenerateFeedback.preprocessors = [
    "grading.bonus.BonusOnTop",
    "grading.outside.HideTests",
    "nbconvert.preprocessors.CSSHTMLHeaderPreprocessor",
]
c.CheckedFromOutside.timeout = 60  # seconds a cell; an endless loop costs this much, and the points of its exercise
if (seed := HERE / "seed").exists():
    c.CheckedFromOutside.seed_shift = int(seed.read_text())

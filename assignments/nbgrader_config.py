"""What nbgrader needs to know; it reads this file when it is started in this folder."""

from pathlib import Path

c = get_config()  # nbgrader provides it
HERE = Path(__file__).resolve().parent

c.CourseDirectory.root = str(HERE)
c.CourseDirectory.course_id = "attention"
c.CourseDirectory.release_directory = str(HERE.parent / "book" / "exercises")
c.IncludeHeaderFooter.header = str(HERE / "source" / "header.ipynb")
c.ClearSolutions.code_stub = {"python": "raise NotImplementedError  # your code here"}
c.ClearSolutions.text_stub = "*Your answer here.*"
c.ExecutePreprocessor.timeout = 60  # seconds a cell; an endless loop costs this much, then no points

"""Whatever a course system, a browser or Colab makes of a file's name, the work finds its student."""

import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("nbgrader")
from grading.collect import FromCourseSystem, split

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("file", "student", "notebook"),
    [
        ("doealice_1234_5678_scaling.ipynb", "doealice_id1234", "scaling"),
        ("doealice_LATE_1234_5678_build-flash.ipynb", "doealice_id1234", "build-flash"),
        ("doealice_1234_5678_why-attention-2.ipynb", "doealice_id1234", "why-attention"),
        ("doealice_1234_5678_Copy of scaling (1).ipynb", "doealice_id1234", "scaling"),
        ("doe2alice_1234_5678_Copy_of_Copy_of_scaling.ipynb", "doe2alice_id1234", "scaling"),
        ("doealice_1234_5678_my work/multi-head.ipynb", "doealice_id1234", "multi-head"),
        ("doealice_1234_5678_scaling-mended.ipynb", "doealice_id1234", "scaling"),
        ("anon_x7Qf2_5678_scaling.ipynb", "anon_x7Qf2", "scaling"),
        ("LATE_anon_x7Qf2_5678_scaling.ipynb", "anon_x7Qf2", "scaling"),
        ("Alice Doe_1234_assignsubmission_file/scaling.ipynb", "Alice Doe_id1234", "scaling"),
        ("Alice Doe_1234_assignsubmission_file_/week 3/scaling(2).ipynb", "Alice Doe_id1234", "scaling"),
        ("Alice Doe_1234_assignsubmission_file_build-attention.ipynb", "Alice Doe_id1234", "build-attention"),
        ("Participant_1234_assignsubmission_file/scaling.ipynb", "Participant_id1234", "scaling"),
        ("José Núñez-Lee_77_assignsubmission_file_/positions-1.ipynb", "José Núñez-Lee_id77", "positions"),
    ],
)
def test_the_file_finds_its_student(file, student, notebook):
    found = FromCourseSystem().collect(f"/course/downloaded/scaling/extracted/zip 1_2/{file}")
    assert found == {"student_id": student, "file_id": notebook}


@pytest.mark.parametrize("file", ["scaling.ipynb", "doealice_1234_5678_notes.txt", "Alice Doe/scaling.ipynb"])
def test_what_belongs_to_nobody_is_not_guessed(file):
    assert FromCourseSystem().collect(f"/course/downloaded/{file}") is None


def test_number_and_name_come_apart_again():
    assert split("Alice Doe_id1234") == ("Alice Doe", "1234")
    assert split("student_01") == ("student_01", "")


def test_a_zip_within_a_zip_is_collected_by_the_command_of_the_guide(tmp_path):
    for needed in ("assignments/nbgrader_config.py", "assignments/source/header.ipynb", "book/exercises"):
        source, target = ROOT / needed, tmp_path / needed
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("build-flash.ipynb", "hers")
    outer = tmp_path / "assignments/downloaded/build-flash/archive/all.zip"
    outer.parent.mkdir(parents=True)
    with zipfile.ZipFile(outer, "w") as archive:
        archive.writestr("Alice Doe_1_assignsubmission_file/build-flash.ipynb", "one Alice's")
        archive.writestr("Alice Doe_2_assignsubmission_file/build-flash.ipynb", "the other's")
        archive.writestr("roebob_3_9_work.zip", inner.getvalue())

    command = [Path(sys.executable).with_name("nbgrader"), "zip_collect", "build-flash"]
    done = subprocess.run(command, cwd=tmp_path / "assignments", capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    collected = (tmp_path / "assignments/submitted").glob("*/build-flash/build-flash.ipynb")
    assert {file.parts[-3]: file.read_text() for file in collected} == {
        "Alice Doe_id1": "one Alice's",
        "Alice Doe_id2": "the other's",
        "roebob_id3": "hers",
    }

"""Tests of grading.feedback_zip: the zip of feedback has the layout of the zip of submissions."""

import zipfile

import pytest

pytest.importorskip("nbgrader")
from grading.collect import main
from grading.feedback_zip import write_zip

CAME = {
    "doealice_1234_5678_scaling.ipynb": "doealice_1234_5678_scaling.html",
    "doebob_LATE_1235_5679_scaling-2.ipynb": "doebob_LATE_1235_5679_scaling-2.html",
    "anon_x7Qf2_5680_work.zip": "anon_x7Qf2_5680_work.html",
    "Alice Doe_12_assignsubmission_file/scaling.ipynb": "Alice Doe_12_assignsubmission_file/scaling.html",
    "José Núñez_13_assignsubmission_file_/week 3/s.ipynb": "José Núñez_13_assignsubmission_file_/scaling.html",
    "Cy Doe_14_assignsubmission_file_scaling.ipynb": "Cy Doe_14_assignsubmission_file_scaling.html",
}


def test_write_zip_uses_the_names_of_the_download(tmp_path):
    archive = tmp_path / "downloaded/scaling/archive"
    archive.mkdir(parents=True)
    with zipfile.ZipFile(archive / "inner.zip", "w") as inner:
        inner.writestr("scaling.ipynb", "theirs")
    zipped = (archive / "inner.zip").read_bytes()
    (archive / "inner.zip").unlink()
    with zipfile.ZipFile(archive / "all.zip", "w") as every:
        for name in CAME:
            every.writestr(name, zipped if name.endswith(".zip") else name)
    assert main(["scaling", "--course", str(tmp_path)]) == 0
    students = [path.name for path in (tmp_path / "submitted").iterdir()]
    assert len(students) == len(CAME)
    for student in students:
        (tmp_path / "feedback" / student / "scaling").mkdir(parents=True)
        (tmp_path / "feedback" / student / "scaling/scaling.html").write_text(f"for {student}")
    (tmp_path / "report/scaling").mkdir(parents=True)
    path, without = write_zip(tmp_path, "scaling", [*students, "by hand"])
    assert without == ["by hand"]
    with zipfile.ZipFile(path) as back:
        assert sorted(back.namelist()) == sorted(CAME.values())
        assert back.read("Alice Doe_12_assignsubmission_file/scaling.html") == b"for Alice Doe_id12"


def test_write_zip_uses_the_name_of_the_chosen_file(tmp_path):
    archive = tmp_path / "downloaded/scaling/archive"
    archive.mkdir(parents=True)
    for name in ("doealice_1_10_scaling.ipynb", "doealice_1_11_scaling-1.ipynb", "doealice_1_12_notes.txt"):
        (archive / name).write_text(name)
    main(["scaling", "--course", str(tmp_path)])
    (tmp_path / "feedback/doealice_id1/scaling").mkdir(parents=True)
    (tmp_path / "feedback/doealice_id1/scaling/scaling.html").write_text("hers")
    (tmp_path / "report/scaling").mkdir(parents=True)
    with zipfile.ZipFile(write_zip(tmp_path, "scaling", ["doealice_id1"])[0]) as back:
        assert back.namelist() == ["doealice_1_11_scaling-1.html"]

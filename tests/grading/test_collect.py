"""Tests of grading.collect: find the student of each file in a download of Canvas or Moodle, under changed names."""

import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("nbgrader")
from grading import collect
from grading.collect import CourseSystemCollector, main
from grading.names import split

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
        ("प्रिया शर्मा_11_assignsubmission_file/scaling.ipynb", "प्रिया शर्मा_id11", "scaling"),
        ("สมชาย ใจดี_12_assignsubmission_file/scaling.ipynb", "สมชาย ใจดี_id12", "scaling"),
        ("مُحَمَّد_13_assignsubmission_file/scaling.ipynb", "مُحَمَّد_id13", "scaling"),
        ("Zoe\u0308_14_assignsubmission_file/scaling.ipynb", "Zo\u00eb_id14", "scaling"),
        ("Tim O\u2019Brien_15_assignsubmission_file/scaling.ipynb", "Tim O'Brien_id15", "scaling"),
        ("José Núñez-Lee_77_assignsubmission_file_/positions-1.ipynb", "José Núñez-Lee_id77", "positions"),
    ],
)
def test_collect_finds_the_student_of_a_file(file, student, notebook):
    found = CourseSystemCollector().collect(f"/course/downloaded/scaling/extracted/zip 1_2/{file}")
    assert found == {"student_id": student, "file_id": notebook}


@pytest.mark.parametrize(
    ("file", "student"),
    [
        ("Alice Doe_1_assignsubmission_file/Bob Roe_2_assignsubmission_file_scaling.ipynb", "Alice Doe_id1"),
        ("Alice Doe_1_assignsubmission_file/Bob Roe_2_assignsubmission_file/scaling.ipynb", "Alice Doe_id1"),
        ("Alice Doe_1_assignsubmission_file/hw_1_2_final/scaling.ipynb", "Alice Doe_id1"),
        ("Alice Doe_1_assignsubmission_file/scaling_2026_11_21.ipynb", "Alice Doe_id1"),
        ("doealice_1_10_roebob_2_11_scaling.ipynb", "doealice_id1"),
    ],
)
def test_collect_outermost_name_decides(file, student):
    found = CourseSystemCollector().collect(f"/course_1_2/downloaded/scaling/extracted/zip_1_2/{file}")
    assert found["student_id"] == student


@pytest.mark.parametrize("file", ["scaling.ipynb", "doealice_1234_5678_notes.txt", "Alice Doe/scaling.ipynb"])
def test_collect_returns_none_without_an_owner(file):
    assert CourseSystemCollector().collect(f"/course/downloaded/{file}") is None


def test_split_returns_name_and_number():
    assert split("Alice Doe_id1234") == ("Alice Doe", "1234")
    assert split("student_01") == ("student_01", "")


def test_zip_collect_handles_a_zip_within_a_zip(tmp_path):
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


def zipped(files: dict[str, bytes | str]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return target.getvalue()


BROKEN_INSIDE = zipped({"scaling.ipynb": "a" * 1000}).replace(b"PK\x01\x02", b"PK\x01\x03")
CLASS = {  # files in the course system's zip, the collected notebook by student, and the expected messages
    "one file": ({"doealice_1_10_scaling.ipynb": "hers"}, {"doealice_id1": "hers"}, []),
    "two and the mended one": (
        {"Al_1_assignsubmission_file/scaling.ipynb": "old", "Al_1_assignsubmission_file/scaling-mended.ipynb": "new"},
        {"Al_id1": "new"},
        ["Al_id1: scaling.ipynb was not taken, but scaling-mended.ipynb"],
    ),
    "two of one submission": (
        {"doealice_1_10_scaling.ipynb": "first", "doealice_1_11_scaling-1.ipynb": "second"},
        {"doealice_id1": "second"},
        ["doealice_id1: scaling.ipynb was not taken, but scaling-1.ipynb"],
    ),
    "a broken zip": (
        {"doealice_1_10_work.zip": "PK broken", "roebob_2_11_scaling.ipynb": "his"},
        {"roebob_id2": "his"},
        ["doealice_id1: work.zip cannot be opened", "doealice_id1: there is no notebook scaling.ipynb"],
    ),
    "a zip broken inside": (
        {"doealice_1_10_work.zip": BROKEN_INSIDE, "roebob_2_11_scaling.ipynb": "his"},
        {"roebob_id2": "his"},
        ["doealice_id1: work.zip cannot be opened"],
    ),
    "no tar": (
        {"doealice_1_10_data.gz": b"\x1f\x8b", "doealice_1_11_scaling.ipynb": "hers"},
        {"doealice_id1": "hers"},
        ["doealice_id1: data.gz is no notebook, not taken"],
    ),
    "a zip that climbs": (
        {"doealice_1_10_work.zip": zipped({"../../../../planted.ipynb": "hers"}), "roebob_2_11_scaling.ipynb": "his"},
        {"doealice_id1": "hers", "roebob_id2": "his"},
        ["doealice_id1: work.zip: ../../../../planted.ipynb was taken, though it is called otherwise"],
    ),
    "in another's name": (
        {
            "Alice Doe_1_assignsubmission_file_/Bob Roe_2_assignsubmission_file_scaling.ipynb": "Alice's",
            "Bob Roe_2_assignsubmission_file_/scaling.ipynb": "Bob's",
        },
        {"Alice Doe_id1": "Alice's", "Bob Roe_id2": "Bob's"},
        [],
    ),
    "in another's name, zipped": (
        {"Al_1_assignsubmission_file_/x.zip": zipped({"Bo_2_assignsubmission_file_/scaling.ipynb": "Al's"})},
        {"Al_id1": "Al's"},
        [],
    ),
    "two in a zip": (
        {"doealice_1_10_work.zip": zipped({"a/scaling (1).ipynb": "old", "b/scaling (2).ipynb": "new"})},
        {"doealice_id1": "new"},
        ["doealice_id1: work.zip: a/scaling (1).ipynb was not taken, but work.zip: b/scaling (2).ipynb"],
    ),
    "dates and folders": (
        {"Al_1_assignsubmission_file/hw_1_2_final/scaling_2026_11_21.ipynb": "hers"},
        {"Al_id1": "hers"},
        ["Al_id1: hw_1_2_final/scaling_2026_11_21.ipynb was taken, though it is called otherwise"],
    ),
    "other letters": ({"doealice_1_10_Scaling.ipynb": "hers"}, {"doealice_id1": "hers"}, []),
    "two of other names": (
        {"doealice_1_10_a.ipynb": "?", "doealice_1_11_b.ipynb": "?"},
        {},
        ["doealice_id1: there is no notebook scaling.ipynb", "doealice_id1: a.ipynb was not taken"],
    ),
    "a bomb": (
        {"doealice_1_10_work.zip": zipped({"scaling.ipynb": bytes(3000)}), "roebob_2_11_scaling.ipynb": "his"},
        {"roebob_id2": "his"},
        ["doealice_id1: work.zip: scaling.ipynb is larger than"],
    ),
    "many small bombs": (
        {"doealice_1_10_work.zip": zipped({f"scaling-{i}.ipynb": bytes(1900) for i in range(9)})},
        {"doealice_id1": bytes(1900).decode()},
        ["doealice_id1: work.zip cannot be opened (with it there are more than"],
    ),
    "what a computer leaves": (
        {
            "__MACOSX/doealice_1_10_._scaling.ipynb": "?",
            "Al_1_assignsubmission_file/.ipynb_checkpoints/scaling-checkpoint.ipynb": "?",
            "Al_1_assignsubmission_file/scaling.ipynb": "hers",
        },
        {"Al_id1": "hers"},
        [],
    ),
    "a name for a shell": ({"A[l]*_1_assignsubmission_file/scaling.ipynb": "hers"}, {"A-l--_id1": "hers"}, []),
    "text beside the file": (
        {
            "Al_1_assignsubmission_file/scaling.ipynb": "hers",
            "Al_1_assignsubmission_onlinetext/onlinetext.html": "<p>see my file</p>",
        },
        {"Al_id1": "hers"},
        ["Al_id1: onlinetext.html is no notebook, not taken"],
    ),
    "a folder around": ({"CS_2026_11_all/doealice_1_10_scaling.ipynb": "hers"}, {"doealice_id1": "hers"}, []),
    "nobody's": (
        {"readme.txt": "?", "doealice_1_10_scaling.ipynb": "hers"},
        {"doealice_id1": "hers"},
        ["nobody's: readme.txt"],
    ),
}


@pytest.mark.parametrize("unzipped", [False, True], ids=["zip", "folder"])
@pytest.mark.parametrize("case", CLASS)
def test_main_collects_every_student_despite_faulty_files(case, unzipped, tmp_path, monkeypatch, capsys):
    files, wanted, said = CLASS[case]
    monkeypatch.setattr(collect, "LIMIT", 2000)
    archive = tmp_path / "downloaded/scaling/archive"
    archive.mkdir(parents=True)
    if unzipped:
        for name, content in files.items():
            (archive / name).parent.mkdir(parents=True, exist_ok=True)
            (archive / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    else:
        (archive / "CS_2026_11.zip").write_bytes(zipped(files))
    status = main(["scaling", "--course", str(tmp_path)])
    found = {path.parts[-3]: path.read_text() for path in tmp_path.glob("submitted/*/scaling/scaling.ipynb")}
    printed = capsys.readouterr().out
    assert found == wanted
    assert not [line for line in said if line not in printed], printed
    everybody = {path.name for path in (tmp_path / "submitted").iterdir()}
    assert status == (0 if set(found) == everybody else 1)
    assert not list(tmp_path.rglob("planted*"))


def test_main_again_collects_newer_files(tmp_path):
    archive = tmp_path / "downloaded/scaling/archive"
    archive.mkdir(parents=True)
    for text in ("first", "second"):
        (archive / "all.zip").write_bytes(zipped({"doealice_1_10_scaling.ipynb": text}))
        assert main(["scaling", "--course", str(tmp_path)]) == 0
        assert (tmp_path / "submitted/doealice_id1/scaling/scaling.ipynb").read_text() == text


def test_main_without_a_download_raises(tmp_path, capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["scaling", "--course", str(tmp_path)])
    assert "there is no folder downloaded/scaling/archive" in capsys.readouterr().err


def test_main_with_a_broken_download_raises(tmp_path, capsys):
    (tmp_path / "downloaded/scaling/archive").mkdir(parents=True)
    (tmp_path / "downloaded/scaling/archive/all.zip").write_text("PK")
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["scaling", "--course", str(tmp_path)])
    assert "all.zip is no zip that can be opened" in capsys.readouterr().err

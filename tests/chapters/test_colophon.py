"""Tests of the page on how the book is made: its tables agree with the repository's files and are complete."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def colophon(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "book/_ext")
    import colophon

    return colophon


def test_records_state_their_command_date_and_versions(colophon):
    from chapters import chapters

    named = {
        name
        for path in chapters(ROOT).values()
        for name in re.findall(r"[\w-]+\.json", path.read_text(encoding="utf-8"))
    }
    found = colophon.records(ROOT)
    runs = {path.name for path in (ROOT / colophon.RECORDS).glob("*.json") if not path.read_text().startswith("[")}
    assert named & runs == set(found)
    assert len(found) >= 10
    for name, run in found.items():
        script = re.search(r"benchmarks/\w+\.py", run.command)
        assert script, name
        assert (ROOT / script[0]).is_file(), run.command
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", run.date), name
        assert "torch 2." in run.versions, name


def test_records_missing_device_raises(colophon, tmp_path):
    (tmp_path / "_toc.yml").write_text(
        "parts:\n- chapters:\n  - {file: book/one, title: One}\n  - {file: book/two, title: Two}\n"
    )
    (tmp_path / "book").mkdir()
    (tmp_path / "benchmarks/results").mkdir(parents=True)
    about = {
        "command": "python benchmarks/a.py",
        "date": "2026-11-23",
        "device": "a desk",
        "versions": {"torch": "2.13"},
    }
    for name in ("one", "two"):
        (tmp_path / f"book/{name}.ipynb").write_text(f'"read results/{name}.json"')
        (tmp_path / f"benchmarks/results/{name}.json").write_text(json.dumps(about))
    (tmp_path / "benchmarks/results/nobody-s.json").write_text("{}")
    found = colophon.records(tmp_path)
    assert {name: run.read_in for name, run in found.items()} == {"one.json": ["One"], "two.json": ["Two"]}
    del about["device"]
    (tmp_path / "benchmarks/results/two.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"two\.json must say how it was made, but has no \['device'\]"):
        colophon.records(tmp_path)


def test_generated_scripts_state_their_command(colophon):
    found = colophon.generated_scripts(ROOT)
    carried = {
        path.name
        for path in (ROOT / colophon.SCRIPTS).glob("*.js")
        if max(len(line) for line in path.read_text(encoding="utf-8").splitlines())
        > 1000  # no script written by hand has such a line
    }
    assert carried <= set(found)
    assert len(carried) >= 4
    for command, _ in found.values():
        assert (ROOT / command.split()[1]).is_file(), command


def test_pins_agree_with_requirements(colophon):
    pinned = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    shown = {f"{name}=={version}" for named in colophon.pins(ROOT).values() for name, version in named.items()}
    assert {line.partition(";")[0] for line in pinned} >= shown
    assert any(line.startswith("torch==") for line in shown)
    assert "the tests" in colophon.pins(ROOT)


def test_page_has_each_table_once(colophon):
    page = (ROOT / f"{colophon.PAGE}.md").read_text(encoding="utf-8")
    for mark, table in colophon.tables(ROOT).items():
        assert page.count(mark) == 1
        assert table in colophon.with_tables(page, ROOT)
        assert mark not in colophon.with_tables(page, ROOT)

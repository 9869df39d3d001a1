from __future__ import annotations

import pytest

pytest.importorskip("keras", reason="Keras is not installed")

from replicax.keras._backups import WholeBackups


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def contents(folder):
    return {path.name: path.read_text() for path in folder.glob("*")}


def test_a_backup_that_was_cut_off_does_not_count(tmp_path):
    folder = tmp_path / "backup"
    backups = WholeBackups(folder)
    backups.start()
    write(folder, weights="cut o")
    WholeBackups(folder).start()  # after a kill in the first backup
    assert contents(folder) == {}

    write(folder, weights="of epoch 1", epoch="1")
    backups.note()
    write(folder, weights="of ep")
    WholeBackups(folder).start()
    assert contents(folder) == {"weights": "of epoch 1", "epoch": "1"}


@pytest.mark.parametrize("moment", ["before", "between", "after"])
def test_a_copy_that_was_cut_off_does_not_count(tmp_path, moment):
    folder, whole, part, old = (tmp_path / f"b{e}" for e in ("", ".whole", ".part", ".old"))
    backups = WholeBackups(folder)
    backups.start()
    write(folder, weights="1")
    backups.note()
    write(folder, weights="2")
    write(part, weights="2")
    if moment != "before":
        whole.rename(old)
    if moment == "after":
        part.rename(whole)

    WholeBackups(folder).start()
    assert contents(folder) == {"weights": "2" if moment == "after" else "1"}
    assert not part.exists()
    assert not old.exists()


def test_backups_of_elsewhere_count_and_none_are_left_at_the_end(tmp_path):
    folder = tmp_path / "backup"
    write(folder, weights="of one device")
    backups = WholeBackups(folder)
    backups.start()
    assert contents(folder) == {"weights": "of one device"}

    backups.end()
    assert (tmp_path / "backup.whole").exists()
    for path in folder.glob("*"):
        path.unlink()
    folder.rmdir()
    backups.end()
    assert list(tmp_path.iterdir()) == []

import pytest
from scored_plans import batch

from autoplan.errors import StorageError
from autoplan.results.spool import Spool
from autoplan.storage.url import Storage

IDENTITIES = {"workload": "a", "cluster": "b"}
SERVER = Storage.parse("postgresql+psycopg://me:very-secret-9@host/db")


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "folder", SERVER, "mine/../of you")


def stored(number):
    return [each.storable() for each in batch(number)]


def test_batches_come_back_in_order(spool):
    for number in range(3):
        spool.append(IDENTITIES, stored(number))
    assert [list(each) for each in spool.batches(IDENTITIES)] == [stored(n) for n in range(3)]
    spool.discard()
    assert list(spool.batches(IDENTITIES)) == []
    spool.discard()


def test_the_file_stays_in_its_folder_and_shows_no_password(spool, tmp_path):
    spool.append(IDENTITIES, stored(0))
    assert spool.path.parent == tmp_path / "folder"
    assert "very-secret-9" not in spool.path.name + spool.path.read_text()


def test_databases_have_spools_of_their_own(tmp_path):
    other = Storage.parse("postgresql+psycopg://me:very-secret-9@elsewhere/db")
    assert Spool(tmp_path, SERVER, "x").path != Spool(tmp_path, other, "x").path


def test_a_line_cut_short_by_a_kill_is_dropped_wherever_the_cut_is(spool):
    spool.append(IDENTITIES, stored(0))
    whole = spool.path.read_bytes()
    spool.append(IDENTITIES, stored(1))
    both = spool.path.read_bytes()
    for cut in range(len(whole), len(both), 97):
        spool.path.write_bytes(both[:cut])
        assert [list(each) for each in spool.batches(IDENTITIES)] == [stored(0)]
        spool.append(IDENTITIES, stored(2))
        assert [list(each) for each in spool.batches(IDENTITIES)] == [stored(0), stored(2)]


@pytest.mark.parametrize(
    ("old", "new"),
    [('"microbatches":1', '"microbatches":2'), ('{"', "{'"), ("spool/1", "spool/2")],
)
def test_a_damaged_line_is_told_and_kept(spool, old, new):
    spool.append(IDENTITIES, stored(0))
    text = spool.path.read_text().replace(old, new, 1)
    spool.path.write_text(text)
    with pytest.raises(StorageError, match=r"line 1.*move the file away"):
        list(spool.batches(IDENTITIES))
    assert spool.path.read_text() == text


def test_plans_of_another_experiment_are_not_mixed_in(spool):
    spool.append(IDENTITIES, stored(0))
    with pytest.raises(StorageError, match="another experiment"):
        list(spool.batches({**IDENTITIES, "cluster": "c"}))


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    spool = Spool(tmp_path / "file", SERVER, "x")
    with pytest.raises(StorageError, match="could not be kept"):
        spool.append(IDENTITIES, stored(0))

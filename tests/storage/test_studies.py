import optuna
import pytest

from autoplan.errors import StorageError
from autoplan.storage.retry import RetryPolicy
from autoplan.storage.studies import study_storage
from autoplan.storage.url import Storage


def test_a_study_survives_a_restart_of_its_server(postgres, postgres_url):
    study = optuna.create_study(storage=study_storage(Storage.parse(postgres_url)))
    study.add_trial(optuna.trial.create_trial(value=1.0))
    postgres.restart_at_once()
    study.add_trial(optuna.trial.create_trial(value=2.0))
    assert [trial.value for trial in study.get_trials()] == [1.0, 2.0]


def test_braces_in_a_path_are_no_template(tmp_path):
    path = tmp_path / "{curly}.db"
    study_storage(Storage.parse(str(path)))
    assert path.exists()


def test_a_damaged_file_is_a_storage_error(tmp_path):
    (tmp_path / "x.db").write_text("no database" * 100)
    with pytest.raises(StorageError, match="not a database"):
        study_storage(Storage.parse(str(tmp_path / "x.db")), RetryPolicy(budget_s=0.1))

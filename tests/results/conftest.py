"""An empty database of every kind.

MySQL is tried where $AUTOPLAN_TEST_MYSQL holds the URL of a server on which tests may make and drop
databases, such as mysql+pymysql://root@127.0.0.1:3306.
"""

import os
import uuid

import pytest
import sqlalchemy as sa

MYSQL = "AUTOPLAN_TEST_MYSQL"
KINDS = ["sqlite", "postgresql", *(["mysql"] if os.environ.get(MYSQL) else [])]


@pytest.fixture(params=KINDS)
def storage(request, tmp_path):
    """The URL of an empty database, one after the other of all kinds."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'results.db'}"
    elif request.param == "postgresql":
        yield request.getfixturevalue("postgres_url")
    else:
        server = sa.make_url(os.environ[MYSQL])
        name = f"autoplan_{uuid.uuid4().hex}"
        engine = sa.create_engine(server)
        with engine.begin() as connection:
            connection.execute(sa.text(f"CREATE DATABASE {name} CHARACTER SET utf8mb4"))
        yield server.set(database=name).render_as_string(hide_password=False)
        with engine.begin() as connection:
            connection.execute(sa.text(f"DROP DATABASE {name}"))
        engine.dispose()

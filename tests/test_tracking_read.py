"""What cannot be read from MLflow is one error that names the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from pivotopd.errors import ConfigError
from pivotopd.tracking_read import read_metrics


def test_a_file_that_is_no_database_is_one_error(tmp_path: Path) -> None:
    database = tmp_path / "mlflow.db"
    database.write_text("no database\n" * 100)
    with pytest.raises(ConfigError, match=r"MLflow cannot be read: .*not a database") as found:
        read_metrics(f"sqlite:///{database}", "any", ["runs/one"], ["success"])
    assert str(database) in str(found.value.where)


def test_to_read_makes_no_database(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no MLflow database"):
        read_metrics(f"sqlite:///{tmp_path / 'mlflow.db'}", "any", ["runs/one"], ["success"])
    assert not list(tmp_path.iterdir())

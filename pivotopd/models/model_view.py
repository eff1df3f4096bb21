"""A model folder as a foreign loader should see it: the model's own files and nothing beside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from pivotopd.models.checkpoint import WEIGHT_INDEX, weight_files


@contextmanager
def model_alone(folder: str | Path) -> Iterator[Path]:
    """Yield a temporary folder of links to a model's files.

    A checkpoint also holds the optimizer's state, in the format of the weights. vLLM reads every such file of
    a folder that has no index.

    Args:
        folder: Model folder.

    Raises:
        ArtifactError: It has no weights, or an index that is damaged.
    """
    path = Path(folder).resolve()
    weights = weight_files(path)
    indexed = [file.name for file in weights] != ["model.safetensors"]
    with TemporaryDirectory(prefix="pivotopd-model-") as made:
        for file in path.iterdir():
            of_the_model = file in weights or file.suffix != ".safetensors"
            if of_the_model and (indexed or file.name != WEIGHT_INDEX):
                Path(made, file.name).symlink_to(file)
        yield Path(made)

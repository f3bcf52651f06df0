"""A Hugging Face tokenizer from the vocabulary in a GGUF file: byte-level BPE as SmolLM2 has it."""

from __future__ import annotations

from typing import Any

from harness.errors import UserError

CONTROL = 3  # gguf.TokenType.CONTROL
PRE_TOKENIZERS = ("smollm",)  # digits one by one, then GPT-2's pattern


def tokenizer_json(fields: dict[str, Any]) -> dict[str, Any]:
    """tokenizer.json from the GGUF's fields.

    Raises:
        UserError: another kind of tokenizer.
    """
    kind, pre = fields["tokenizer.ggml.model"], fields.get("tokenizer.ggml.pre")
    if kind != "gpt2" or pre not in PRE_TOKENIZERS:
        raise UserError(f"the tokenizer {kind}/{pre} is not known here; take a model with one of {PRE_TOKENIZERS}")
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(id_, text) for id_, text in enumerate(tokens) if types[id_] == CONTROL],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: id_ for id_, text in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]],
        },
    }


def tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json, with the chat template."""
    tokens = fields["tokenizer.ggml.tokens"]
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: fields.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: tokens[int(id_)] for name, id_ in ids.items() if id_ is not None},
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(fields["llama.context_length"]),
        "chat_template": fields["tokenizer.chat_template"],
    }


def _special(id_: int, text: str) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": id_, "content": text, "special": True, **plain}

"""A 512-entry byte-level BPE tokenizer, trained here on a few sentences so that it needs no download.

Byte-level, because every token id must decode to text: a word-level tokenizer returns an empty string for a random
model's output. Trained in plain Python, because a library's trainer may break ties otherwise in its next version.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter

VOCAB_SIZE = 512
SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>")
PAD_ID, BOS_ID, EOS_ID, UNK_ID = range(4)

CORPUS = """
A request enters the queue of the engine and waits until the scheduler gives it blocks. Each step the scheduler picks
requests, counts the tokens that fit the budget, and hands the plan to the worker. The worker prepares positions,
sequence lengths and the slot of every new key and value, then runs the model and samples one token for each request.
When memory runs short the youngest request is preempted, its blocks are freed, and it starts again later from its own
prompt. A prompt that shares a prefix with an earlier one finds those blocks in the cache and skips their prefill. Long
prompts are cut into chunks, so that other requests can decode in the same step. A draft model proposes several tokens,
the target model checks them all at once, and the accepted ones are kept. The answer streams back to the client token
by token, and the time to the first token and the time between tokens tell how well the service works.
The quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs. Numbers: 0 1 2 3 4 5 6 7 8 9 10.
"""

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_alphabet() -> list[str]:
    """Return 256 printable characters, one a byte value: the alphabet every byte-level BPE uses.

    Printable Latin-1 bytes stand for themselves, the others move above U+0100 in order.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(256))
    return [chr(byte) if byte in printable else chr(256 + next(moved)) for byte in range(256)]


def train(text: str, merges: int) -> list[tuple[str, str]]:
    """Return `merges` pairs, the most frequent first, ties by the pair itself.

    Raises:
        ValueError: the text is too short for that many merges.
    """
    alphabet = byte_alphabet()
    space = alphabet[ord(" ")]
    words = Counter(tuple(alphabet[byte] for byte in word.encode()) for word in text.split())
    pieces = {(space, *word): count for word, count in words.items()}
    out: list[tuple[str, str]] = []
    while len(out) < merges:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in pieces.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += count
        if not pairs:
            raise ValueError(f"the text gives only {len(out)} merges, {merges} asked for")
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        out.append(best)
        pieces = {_merge(word, best): count for word, count in pieces.items()}
    return out


def _merge(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    index = 0
    while index < len(word):
        if word[index : index + 2] == pair:
            out.append("".join(pair))
            index += 2
        else:
            out.append(word[index])
            index += 1
    return tuple(out)


def files() -> dict[str, str]:
    """Return the tokenizer's files by name, as transformers' `AutoTokenizer` reads them."""
    alphabet = byte_alphabet()
    merges = train(CORPUS, VOCAB_SIZE - len(SPECIAL_TOKENS) - len(alphabet))
    entries = [*SPECIAL_TOKENS, *alphabet, *("".join(pair) for pair in merges)]
    vocab = {token: index for index, token in enumerate(entries)}
    if len(vocab) != VOCAB_SIZE:
        raise ValueError(f"two merges give one token: {len(vocab)} entries, expected {VOCAB_SIZE}")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [
        {"id": index, "content": token, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for index, token in enumerate(SPECIAL_TOKENS)
    ]
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": vocab, "merges": [" ".join(pair) for pair in merges],
    }  # fmt: skip
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model,
    }  # fmt: skip
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 2048, "clean_up_tokenization_spaces": False,
        "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
        "chat_template": CHAT_TEMPLATE,
    }  # fmt: skip
    return {
        "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False, indent=1) + "\n",
        "tokenizer_config.json": json.dumps(settings, indent=1) + "\n",
    }

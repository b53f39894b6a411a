"""The tokenizer: byte-pair encoding in the manner of Llama's, with a byte for whatever the merges do not know.

Spaces are written as `▁` in front of a word; digits and punctuation stand alone; a character outside printable ASCII
becomes the bytes of its UTF-8 form (`<0x00>` … `<0xFF>`), as does the line break.
"""

import itertools
import json
import string
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from scripts.train_tiny.corpus import BOS, EOS, MARK, TURN_END, TURN_START, documents

VOCAB_SIZE = 2048
MAX_LENGTH = 2048
UNKNOWN = "<unk>"
SPECIAL_TOKENS = (UNKNOWN, BOS, EOS, TURN_START, TURN_END)
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def train_tokenizer(seed: int, sample: int = 20_000) -> Tokenizer:
    """Learn the merges from `sample` documents of the corpus."""
    # As Llama does it: a space in front of every text, spaces as visible marks, and the mark belongs to the next word.
    marks = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    pieces = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("▁", behavior="merged_with_next"),
            pre_tokenizers.Split(Regex(r"▁?[^\p{L}▁]"), behavior="isolated"),
        ]
    )
    learner = Tokenizer(models.BPE(unk_token=UNKNOWN, byte_fallback=True, fuse_unk=False))
    learner.normalizer, learner.pre_tokenizer = marks, pieces
    alphabet = [character for character in string.printable if character.isprintable() and character != " "]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[*SPECIAL_TOKENS, *BYTE_TOKENS],
        initial_alphabet=[*alphabet, "▁"],
        limit_alphabet=len(alphabet) + 1,
        show_progress=False,
    )
    texts = (plain_text(text) for text in itertools.islice(documents(seed), sample))
    learner.train_from_iterator(texts, trainer)

    # The trainer makes the byte tokens special; in the finished tokenizer they are ordinary pieces of text.
    learned = json.loads(learner.to_str())["model"]
    merges = [tuple(merge) for merge in learned["merges"]]
    tokenizer = Tokenizer(
        models.BPE(vocab=learned["vocab"], merges=merges, unk_token=UNKNOWN, byte_fallback=True, fuse_unk=False)
    )
    tokenizer.normalizer, tokenizer.pre_tokenizer = marks, pieces
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    bos = tokenizer.token_to_id(BOS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, bos)]
    )
    return tokenizer


def plain_text(text: str) -> str:
    """A document without what is never merged: special tokens, and line breaks, which are bytes."""
    for token in (*SPECIAL_TOKENS, MARK, "\n"):
        text = text.replace(token, " ")
    return text


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` (with the chat template) into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_LENGTH,
        "bos_token": BOS,
        "eos_token": EOS,
        "unk_token": UNKNOWN,
        "pad_token": EOS,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n")

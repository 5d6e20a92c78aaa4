"""A tiny random Whisper through vLLM's CPU engine under MRV2, guarded: ``python guard_whisper_run.py FOLDER OUT.json``.

The checkpoint is made here: one encoder and one decoder layer, two seconds of audio (100 encoder positions), a
byte-level tokenizer. Requests have prompts of several lengths; the guard sees the decoder's self attention and its
cross attention group.
"""

import json
import os
import sys
from pathlib import Path

SECONDS, POSITIONS, HIDDEN, RATE = 2, 100, 64, 16000
SPECIAL = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>", "<|nospeech|>"]


def checkpoint(folder: Path) -> None:
    import torch
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import (
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
        WhisperProcessor,
        WhisperTokenizer,
    )

    letters = sorted(ByteLevel.alphabet())
    vocab = {letter: number for number, letter in enumerate(letters)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = WhisperTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    ends = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    begins = tokenizer.convert_tokens_to_ids("<|startoftranscript|>")
    extractor = WhisperFeatureExtractor(feature_size=80, chunk_length=SECONDS)
    WhisperProcessor(extractor, tokenizer).save_pretrained(folder)
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=512, num_mel_bins=80, d_model=HIDDEN, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=128, decoder_ffn_dim=128,
        max_source_positions=POSITIONS, max_target_positions=256, bos_token_id=ends, eos_token_id=ends,
        pad_token_id=ends, decoder_start_token_id=begins, begin_suppress_tokens=None, suppress_tokens=None,
        init_std=0.15,
    )  # fmt: skip
    WhisperForConditionalGeneration(config).save_pretrained(folder)


def main(folder: str, out: str) -> None:
    os.environ["VLLM_KV_PLAN_GUARD"] = json.dumps({"enabled": True, "action": "log"})
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from ascend_sim import activate

    activate("plain")
    if os.environ.get("KIT_TRY_UNVERIFIED") == "1":
        from kv_plan_guard.adapters import install

        install._unverified = lambda pair: None
    model = Path(folder)
    checkpoint(model)
    import numpy as np
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=str(model), dtype="float32", enforce_eager=True, max_model_len=128, block_size=32, seed=0,
        kv_cache_memory_bytes=64 << 20, max_num_seqs=4, enable_prefix_caching=False,
        limit_mm_per_prompt={"audio": 1},
    )  # fmt: skip
    draw = np.random.default_rng(0)
    prompts = [
        {
            "encoder_prompt": {
                "prompt": "",
                "multi_modal_data": {"audio": (draw.standard_normal(RATE * SECONDS).astype(np.float32), RATE)},
            },
            "decoder_prompt": {"prompt_token_ids": [257, *range(10, 10 + extra)]},
        }
        for extra in (3, 9, 20, 35, 5, 14)
    ]
    sampling = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True, detokenize=False)
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    guard = runner.__dict__["_kv_plan_guard"]
    guard.poll()
    result = {
        "runner": [cls.__name__ for cls in type(runner).__mro__],
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "kinds": [group.kind for group in guard.layout.groups],
        "counts": guard.guard.stats.to_json(),
        "signatures": [[*key, number] for key, number in guard.guard.signatures().items()],
        "coverage": [[line.code.value, line.active, line.ran, line.why] for line in guard.guard.coverage()],
        "notes": list(guard.plans.notes),
    }
    Path(out).write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:3])

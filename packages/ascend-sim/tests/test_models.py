"""Tiny models without vLLM: the same bytes twice, whole folders only, refusals that say why, oracle drafts."""

import errno
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from ascend_sim import models
from ascend_sim.models import oracle, store, tokenizer
from ascend_sim.models.catalog import ARCHITECTURES, Architecture
from ascend_sim.models.recipe import Tensor
from hypothesis import given, settings
from hypothesis import strategies as st

NAMES = list(ARCHITECTURES)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def header(folder: Path) -> dict[str, dict]:
    data = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    table = json.loads(data[8 : 8 + length])
    table.pop("__metadata__")
    return table


@pytest.mark.parametrize("name", NAMES)
def test_same_name_and_seed_give_the_same_bytes(name, tmp_path):
    first, second = models.build(name, tmp_path / "a"), models.build(name, tmp_path / "b")
    assert contents(first) == contents(second)
    assert first.name == second.name


def test_bytes_do_not_depend_on_the_process(tmp_path):
    here = models.build("dense", tmp_path / "a")
    code = f"from ascend_sim import models; models.build('dense', {str(tmp_path / 'b')!r})"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONHASHSEED": "7"})
    assert contents(here) == contents(tmp_path / "b" / "models" / here.name)


def test_another_seed_gives_other_weights_and_another_folder(tmp_path):
    first, second = models.build("dense", tmp_path), models.build("dense", tmp_path, seed=1)
    assert first != second
    assert (first / "model.safetensors").read_bytes() != (second / "model.safetensors").read_bytes()
    assert (first / "config.json").read_bytes() == (second / "config.json").read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_spread_and_none_is_the_copy_of_another(name):
    seen = set()
    for key, tensor in ARCHITECTURES[name].recipe().tensors.items():
        values = tensor.draw(key, 0)
        assert values.dtype == np.float32
        assert values.shape == tensor.shape
        if tensor.kind == "normal":
            assert values.std() == pytest.approx(tensor.std, rel=0.3)
            seen.add(values.tobytes())
    kinds = [t.kind for t in ARCHITECTURES[name].recipe().tensors.values()]
    assert len(seen) == kinds.count("normal")


def test_header_and_config_agree(tmp_path):
    folder = models.build("dense", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    table = header(folder)
    heads = config["num_attention_heads"] * config["head_dim"]
    assert table["model.embed_tokens.weight"]["shape"] == [config["vocab_size"], config["hidden_size"]]
    assert table["model.layers.1.self_attn.q_proj.weight"]["shape"] == [heads, config["hidden_size"]]
    assert {entry["dtype"] for entry in table.values()} == {"F32"}
    assert config["head_dim"] >= 32
    assert config["num_hidden_layers"] == 2


def test_an_identity_half_needs_twice_as_many_columns():
    assert Tensor((2, 4), "identity_last").draw("fc", 0).tolist() == [[0, 0, 1, 0], [0, 0, 0, 1]]
    with pytest.raises(ValueError, match=r"\[n, 2n\], got \(2, 3\)"):
        Tensor((2, 3), "identity_last").draw("fc", 0)


def test_a_whole_folder_is_reused_and_a_damaged_one_is_made_again(tmp_path, monkeypatch):
    folder = models.build("dense", tmp_path)
    monkeypatch.setattr(store, "_fill", lambda *a: pytest.fail("written again although it was whole"))
    assert models.build("dense", tmp_path) == folder
    monkeypatch.undo()
    weights = folder / "model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert models.build("dense", tmp_path) == folder
    assert weights.read_bytes() == good


@pytest.mark.parametrize("moment", ["config.json", "tokenizer.json", "model.safetensors", store.STAMP])
def test_an_interrupted_build_leaves_nothing(moment, tmp_path, monkeypatch):
    def stop_at(method):
        def guarded(self, *args, **kwargs):
            if self.name == moment:
                raise KeyboardInterrupt
            return method(self, *args, **kwargs)

        return guarded

    monkeypatch.setattr(Path, "write_text", stop_at(Path.write_text))
    monkeypatch.setattr(Path, "write_bytes", stop_at(Path.write_bytes))
    with pytest.raises(KeyboardInterrupt):
        models.build("dense", tmp_path)
    assert list((tmp_path / "models").iterdir()) == []


def test_a_process_killed_while_it_writes_leaves_no_folder_of_the_final_name(tmp_path):
    code = (
        "import os, signal; from ascend_sim import models; from ascend_sim.models import store\n"
        "store._save_weights = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"models.build('dense', {str(tmp_path)!r})"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert [path for path in (tmp_path / "models").iterdir() if not path.name.startswith(".")] == []
    assert store.is_whole(models.build("dense", tmp_path))


def test_a_full_disk_is_one_clear_error_and_leaves_nothing(tmp_path, monkeypatch):
    def full(self, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(
        models.CacheError, match=r"model 'dense' cannot be written to .*No space left.*ASCEND_SIM_CACHE"
    ):
        models.build("dense", tmp_path)
    assert list((tmp_path / "models").iterdir()) == []


def test_a_cache_that_is_a_file_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(models.CacheError, match="cannot be written to"):
        models.build("dense", tmp_path / "file")


def test_missing_safetensors_names_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(models.CacheError, match="pip install safetensors"):
        models.build("dense", tmp_path)
    assert list((tmp_path / "models").iterdir()) == []


def test_cache_folder_by_variable_then_by_user(tmp_path, monkeypatch):
    monkeypatch.setenv(store.CACHE_VARIABLE, str(tmp_path / "mine"))
    assert models.build("eagle").parent == tmp_path / "mine" / "models"
    monkeypatch.delenv(store.CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert store.default_cache() == tmp_path / "xdg" / "ascend-sim"


def test_an_unknown_name_lists_the_known_ones(tmp_path):
    with pytest.raises(models.UnknownModelError, match=r"no tiny model 'gpt'.*'dense'.*'eagle'"):
        models.build("gpt", tmp_path)
    with pytest.raises(models.UnknownModelError, match="no tiny model 'gpt'"):
        models.resolve("gpt", "simulator", tmp_path)
    assert not tmp_path.joinpath("models").exists()


def test_resolve_takes_a_directory_of_ones_own(tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    with pytest.raises(models.UnknownModelError, match=r"no `config\.json`"):
        models.resolve(str(own), "simulator")
    (own / "config.json").write_text("{}")
    assert models.resolve(str(own), "simulator") == own
    with pytest.raises(models.UnknownModelError, match="is not a model directory"):
        models.resolve(str(tmp_path / "absent" / "model"), "simulator")


def test_resolve_builds_what_runs_and_refuses_the_rest_before_it_writes(tmp_path):
    for name, entry in ARCHITECTURES.items():
        for place in ("plain", "simulator"):
            cache = tmp_path / place / name
            if entry.runs(place):
                assert store.is_whole(models.resolve(name, place, cache))
                continue
            reason = f"draft for {entry.draft_for!r}" if entry.draft_for else dict(entry.refused)[place]
            with pytest.raises(models.RefusedModelError) as refusal:
                models.resolve(name, place, cache)
            assert repr(name) in str(refusal.value)
            assert reason in str(refusal.value)
            assert not cache.exists()


def test_a_refusal_names_the_reason_and_what_runs():
    entry = Architecture("odd", "odd", ARCHITECTURES["dense"].recipe, (("simulator", "operator x is missing"),))
    entry.require("plain")
    with pytest.raises(models.RefusedModelError, match=r"'odd' does not run .*: operator x is missing\. Use 'dense'"):
        entry.require("simulator")


def test_every_name_fits_its_entry_and_drafts_name_a_target():
    for name, entry in ARCHITECTURES.items():
        assert entry.name == name
        assert entry.draft_for is None or ARCHITECTURES[entry.draft_for].runs("simulator")
        assert all(reason for _, reason in entry.refused)


def test_tokenizer_has_every_byte_once_and_merges_that_exist():
    content = json.loads(tokenizer.files()["tokenizer.json"])
    vocab = content["model"]["vocab"]
    assert sorted(vocab.values()) == list(range(512))
    assert set(tokenizer.byte_alphabet()) <= set(vocab)
    assert len(set(tokenizer.byte_alphabet())) == 256
    known = set(tokenizer.SPECIAL_TOKENS) | set(tokenizer.byte_alphabet())
    for merge in content["model"]["merges"]:
        left, right = merge.split(" ")
        assert {left, right} <= known
        known.add(left + right)
    assert known == set(vocab)
    settings_ = json.loads(tokenizer.files()["tokenizer_config.json"])
    assert (vocab[settings_["eos_token"]], vocab[settings_["bos_token"]]) == (tokenizer.EOS_ID, tokenizer.BOS_ID)
    assert "add_generation_prompt" in settings_["chat_template"]


def test_training_prefers_the_frequent_pair_then_the_smaller():
    space = tokenizer.byte_alphabet()[ord(" ")]
    assert tokenizer.train("ab ab ab cd cd", 2) == [("a", "b"), (space, "ab")]
    assert tokenizer.train("cd ab", 1) == [("a", "b")]
    with pytest.raises(ValueError, match="gives only 2 merges, 3 asked for"):
        tokenizer.train("ab", 3)


PROMPT, REFERENCE = [11, 12, 13], [100, 101, 102, 103, 104, 105]


def known(acceptance: float, seed: int = 0, reference: list[int] | None = None) -> oracle.Oracle:
    return oracle.Oracle({oracle.prompt_key(PROMPT): reference or REFERENCE}, acceptance, seed)


def test_oracle_with_full_and_with_no_acceptance():
    key = oracle.prompt_key(PROMPT)
    assert known(1.0).drafts(key, 1, 3, 512) == [101, 102, 103]
    wrong = known(0.0).drafts(key, 1, 3, 512)
    assert all(draft != token for draft, token in zip(wrong, REFERENCE[1:4], strict=True))
    assert known(0.0, reference=[511]).drafts(key, 0, 1, 512) == [0]
    assert known(1.0).drafts(key, 5, 3, 512) == [105]
    assert known(1.0).drafts(key, 6, 3, 512) == []
    assert known(1.0).drafts("unknown", 0, 3, 512) is None


@settings(max_examples=10, deadline=None)
@given(acceptance=st.floats(0.0, 1.0), seed=st.integers(0, 2**31))
def test_oracle_keeps_its_rate_and_does_not_depend_on_the_window(acceptance, seed):
    key, reference = oracle.prompt_key(PROMPT), list(range(2000))
    whole = known(acceptance, seed, reference).drafts(key, 0, 2000, 4096)
    rate = sum(draft == token for draft, token in zip(whole, reference, strict=True)) / 2000
    assert abs(rate - acceptance) < 0.06
    again = known(acceptance, seed, reference)
    assert again.drafts(key, 700, 5, 4096) == whole[700:705]


def test_oracle_file_round_trip_and_errors(tmp_path):
    path = tmp_path / "oracle.json"
    oracle.write(path, [PROMPT, [9]], [REFERENCE, [8]], acceptance=0.7, seed=3)
    loaded = oracle.read(path)
    assert loaded == oracle.Oracle({oracle.prompt_key(PROMPT): REFERENCE, oracle.prompt_key([9]): [8]}, 0.7, 3)
    with pytest.raises(oracle.OracleError, match="1 prompts but 2 continuations"):
        oracle.write(path, [PROMPT], [[1], [2]], acceptance=1.0)
    with pytest.raises(oracle.OracleError, match=r"acceptance=1\.5"):
        oracle.write(path, [PROMPT], [[1]], acceptance=1.5)
    assert oracle.read(path) == loaded


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version=2, expected 1"),
        ({"requests": {"k": ["x"]}}, "`requests` must map"),
        ({"requests": {"k": [-1]}}, "`requests` must map"),
        ({"acceptance": "all"}, "`acceptance` must be a number, got 'all'"),
        ({"seed": None}, "`seed` must be a number, got None"),
        ({"acceptance": 7}, "acceptance=7 is not a share"),
    ],
)
def test_oracle_file_with_a_bad_field_names_it(change, message, tmp_path):
    path = tmp_path / "oracle.json"
    oracle.write(path, [PROMPT], [REFERENCE], acceptance=0.7)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(oracle.OracleError, match=message):
        oracle.read(path)


def test_oracle_file_that_is_missing_or_no_json(tmp_path):
    with pytest.raises(oracle.OracleError, match=r"ASCEND_SIM_ORACLE='.*absent\.json' cannot be read"):
        oracle.read(tmp_path / "absent.json")
    (tmp_path / "text.json").write_text("[")
    with pytest.raises(oracle.OracleError, match="cannot be read"):
        oracle.read(tmp_path / "text.json")


class Drafts:
    """An array with the two tensor methods that the oracle uses."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def clone(self) -> "Drafts":
        return Drafts(self.values.copy())

    def numpy(self) -> np.ndarray:
        return self.values

    def __getitem__(self, index) -> "Drafts":
        return Drafts(self.values[index])


def runner_with(total_len: list[int]) -> SimpleNamespace:
    """The parts of a runner that the oracle reads: request b with an unknown prompt in slot 0, request a in slot 1."""
    tokens = np.zeros((2, 64), np.int32)
    tokens[0, :3], tokens[1, :3] = [1, 2, 3], PROMPT
    states = SimpleNamespace(
        req_id_to_index={"b": 0, "a": 1},
        prompt_len=SimpleNamespace(np=np.array([3, 3])),
        all_token_ids=SimpleNamespace(gpu=Drafts(tokens)),
        total_len=SimpleNamespace(gpu=Drafts(np.array(total_len))),
        vocab_size=512,
    )
    own = Drafts(np.full((3, 2), 7, np.int64))
    speculator = SimpleNamespace(propose=lambda batch, **kwargs: own)
    return SimpleNamespace(req_states=states, speculator=speculator, own=own)


BATCH = SimpleNamespace(req_ids=["a", "b", "gone"])


def test_attach_replaces_known_rows_only_and_leaves_the_speculators_buffer():
    runner = runner_with([4, 5])
    oracle.attach(runner, known(1.0))
    assert runner.speculator.propose(BATCH).values.tolist() == [[102, 103], [7, 7], [7, 7]]
    assert runner.speculator.propose(batch=BATCH, input_batch=BATCH).values.tolist() == [[102, 103], [7, 7], [7, 7]]
    assert runner.own.values.tolist() == [[7, 7]] * 3
    assert runner.speculator.propose(BATCH, dummy_run=True) is runner.own


def test_attach_keeps_the_own_draft_where_the_reference_ends():
    runner = runner_with([4, 8])
    oracle.attach(runner, known(1.0))
    assert runner.speculator.propose(BATCH).values.tolist() == [[105, 7], [7, 7], [7, 7]]


def test_attach_from_environment(tmp_path, monkeypatch):
    runner = runner_with([4, 3])
    monkeypatch.delenv(oracle.ENVIRONMENT, raising=False)
    before = runner.speculator.propose
    assert not oracle.attach_from_environment(runner)
    assert runner.speculator.propose is before
    oracle.write(tmp_path / "o.json", [PROMPT], [REFERENCE], acceptance=1.0)
    monkeypatch.setenv(oracle.ENVIRONMENT, str(tmp_path / "o.json"))
    assert oracle.attach_from_environment(runner)
    assert runner.speculator.propose(BATCH).values[0].tolist() == [100, 101]
    assert not oracle.attach_from_environment(SimpleNamespace(speculator=None))
    with pytest.raises(oracle.OracleError, match="no speculator"):
        oracle.attach(SimpleNamespace(speculator=None), known(1.0))

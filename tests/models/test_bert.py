"""Our BERT against the reference implementation."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoModelForPreTraining, BertConfig, BertForMaskedLM, BertForPreTraining

from stoker.models import hf
from stoker.models.bert import SPEC, Bert, _packed
from stoker.models.build import new_model
from stoker.models.load import load_model
from stoker.spec import hf_config
from stoker.spec.errors import UserError
from stoker.spec.model import Model

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPE = Model(family="bert", layers=3, heads=4, width=64, hidden=96, context=48, vocab=199)
LENGTHS = torch.tensor([48, 1, 17, 31])
CONFIG = BertConfig(
    num_hidden_layers=3, num_attention_heads=4, hidden_size=64, intermediate_size=96, max_position_embeddings=48,
    vocab_size=199, initializer_range=0.2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip


def pair() -> tuple[Bert, BertForPreTraining]:
    torch.manual_seed(1)
    reference = BertForPreTraining(CONFIG).eval()
    for p in (reference.cls.predictions.bias, reference.cls.seq_relationship.bias, reference.bert.pooler.dense.bias):
        torch.nn.init.normal_(p, std=0.2)
    ours = new_model(SHAPE).eval()
    assert isinstance(ours, Bert)
    ours.load_state_dict(SPEC.from_hf({k: v for k, v in reference.state_dict().items() if ".decoder." not in k}))
    return ours, reference


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, segments, and which of them are real. No token is 0: the reference's embedding of it is not trained."""
    chance = torch.Generator().manual_seed(2)
    tokens = torch.randint(1, 199, (4, 48), generator=chance)
    at = torch.arange(48)
    real = at < LENGTHS[:, None]
    segments = ((at >= LENGTHS[:, None] // 2) & real).long()
    return tokens * real, segments, real


def test_with_the_references_weights_both_heads_give_the_references_logits() -> None:
    ours, reference = pair()
    tokens, segments, real = batch()
    with torch.no_grad():
        words, next_sentence = ours.everywhere(tokens, segments, LENGTHS)
        wanted = reference(tokens, attention_mask=real.long(), token_type_ids=segments)
    assert torch.allclose(words[real], wanted.prediction_logits[real], rtol=1e-5, atol=1e-5)
    assert torch.allclose(next_sentence, wanted.seq_relationship_logits, rtol=1e-5, atol=1e-5)


def test_gradients_are_the_references() -> None:
    ours, reference = pair()
    tokens, segments, real = batch()
    places = torch.tensor([3, 40, 2 * 48 + 5, 3 * 48 + 30])
    goals, labels = torch.tensor([5, 6, 7, 8]), torch.tensor([0, 1, 1, 0])
    words, next_sentence = ours(tokens, segments, LENGTHS, places)
    (F.cross_entropy(words, goals) + F.cross_entropy(next_sentence, labels)).backward()
    theirs = torch.full((4 * 48,), -100)
    theirs[places] = goals
    reference(
        tokens, attention_mask=real.long(), token_type_ids=segments, labels=theirs.view(4, 48),
        next_sentence_label=labels,
    ).loss.backward()  # fmt: skip
    wanted = SPEC.from_hf({name: p.grad for name, p in reference.named_parameters()})
    for name, p in ours.named_parameters():
        assert torch.allclose(p.grad, wanted[name], rtol=1e-4, atol=1e-6), name


def test_logits_are_computed_only_at_the_chosen_positions() -> None:
    ours, _ = pair()
    tokens, segments, _ = batch()
    places = torch.tensor([1, 47, 48, 100])
    with torch.no_grad():
        words, _ = ours(tokens, segments, LENGTHS, places)
        whole, _ = ours.everywhere(tokens, segments, LENGTHS)
    assert words.shape == (4, 199)
    assert torch.allclose(words, whole.flatten(0, 1)[places], atol=1e-6)


def test_padding_has_no_effect() -> None:
    ours, _ = pair()
    tokens, segments, real = batch()
    with torch.no_grad():
        before = ours.everywhere(tokens, segments, LENGTHS)
        after = ours.everywhere(tokens.masked_fill(~real, 77), segments.masked_fill(~real, 1), LENGTHS)
    assert torch.equal(before[0][real], after[0][real])
    assert torch.equal(before[1], after[1])


def test_packed_rows_follow_each_other_and_padding_becomes_rows_that_are_ignored() -> None:
    starts = _packed(torch.tensor([5, 1, 4]), total=30, longest=8).starts.tolist()
    assert starts[:4] == [0, 5, 6, 10]
    assert starts[-1] == 30
    assert all(0 <= b - a <= 8 for a, b in pairwise(starts))


def test_dropout_is_active_only_in_training() -> None:
    torch.manual_seed(0)
    model = new_model(SHAPE.model_copy(update={"dropout": 0.5}))
    assert isinstance(model, Bert)
    tokens, segments, _ = batch()
    assert not torch.equal(*(model.everywhere(tokens, segments, LENGTHS)[1] for _ in range(2)))
    model.eval()
    assert torch.equal(*(model.everywhere(tokens, segments, LENGTHS)[1] for _ in range(2)))


def test_initial_weights_have_the_references_spread() -> None:
    ours = new_model(Model(family="bert", layers=2, heads=4, width=128, context=64, vocab=1000)).state_dict()
    for name in ("words.weight", "segments.weight", "blocks.0.query.weight", "blocks.1.down.weight", "pooler.weight"):
        assert ours[name].std().item() == pytest.approx(0.02, rel=0.1), name
    assert ours["blocks.0.out_norm.weight"].eq(1).all()
    assert ours["blocks.0.query.bias"].eq(0).all()


def saved(folder: Path, model: torch.nn.Module) -> Path:
    model.save_pretrained(folder)
    return folder


def written(folder: Path, source: Path) -> Path:
    """The model of a folder, written by us."""
    ours = load_model(source, device="cpu")
    folder.mkdir()
    (folder / hf_config.CONFIG_FILE).write_text(json.dumps(hf_config.config(ours.shape, dtype="float32", end=0)))
    hf.write_weights(folder, ours.shape, ours.model, dtype=torch.float32, limit=10**9)
    return folder


def test_the_references_folder_is_read_and_written_bit_for_bit(tmp_path: Path) -> None:
    theirs = pair()[1]
    folder = written(tmp_path / "ours", saved(tmp_path / "theirs", theirs))
    again, notes = AutoModelForPreTraining.from_pretrained(folder, output_loading_info=True)
    assert isinstance(again, BertForPreTraining)
    assert not any(notes[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in theirs.state_dict().items())
    assert again.cls.predictions.decoder.weight is again.bert.embeddings.word_embeddings.weight
    for key in ("num_hidden_layers", "intermediate_size", "max_position_embeddings", "hidden_dropout_prob"):
        assert getattr(again.config, key) == getattr(theirs.config, key)


def test_a_folder_with_old_tensor_names_is_read(tmp_path: Path) -> None:
    theirs = pair()[1]
    old = {}
    for name, tensor in theirs.state_dict().items():
        if "LayerNorm" in name:
            name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        old[name] = tensor.clone()
    old["bert.embeddings.position_ids"] = torch.arange(48)[None]
    saved(tmp_path / "old", theirs)
    (tmp_path / "old" / "model.safetensors").unlink()
    torch.save(old, tmp_path / "old" / "pytorch_model.bin")
    again = load_file(written(tmp_path / "ours", tmp_path / "old") / "model.safetensors")
    assert all(torch.equal(tensor, theirs.state_dict()[name]) for name, tensor in again.items())


def test_an_untied_output_layer_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, pair()[1])
    held = load_file(tmp_path / "model.safetensors")
    held["cls.predictions.decoder.bias"] = held["cls.predictions.bias"] + 1
    save_file(held, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"cls\.predictions\.decoder\.bias differs"):
        load_model(tmp_path, device="cpu")


def test_a_model_without_a_next_sentence_head_gets_a_new_one_the_same_each_time(tmp_path: Path) -> None:
    torch.manual_seed(1)
    theirs = BertForMaskedLM(CONFIG).eval()
    ours = [load_model(saved(tmp_path, theirs), device="cpu").model for _ in range(2)]
    tokens, segments, real = batch()
    with torch.no_grad():
        words, _ = ours[0].everywhere(tokens, segments, LENGTHS)
        wanted = theirs(tokens, attention_mask=real.long(), token_type_ids=segments).logits
    assert torch.allclose(words[real], wanted[real], rtol=1e-5, atol=1e-5)
    assert torch.equal(ours[0].next.weight, ours[1].next.weight)
    assert ours[0].pooler.weight.std().item() == pytest.approx(0.2, rel=0.1)


def test_a_model_with_any_other_tensor_missing_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, pair()[1])
    held = load_file(tmp_path / "model.safetensors")
    del held["cls.predictions.transform.dense.weight"]
    save_file(held, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"is missing transform\.weight"):
        load_model(tmp_path, device="cpu")

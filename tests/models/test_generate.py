"""Generated text equals the reference's, and each row is as if generated alone."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from stoker.data.tokenizer import LoadedTokenizer, load_folder
from stoker.models import model_spec
from stoker.models.build import new_model
from stoker.models.generate import Settings, TextPiece, draw, generate
from stoker.spec.errors import RunFailed, UserError
from stoker.spec.model import Model

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPE = Model(layers=3, heads=3, width=39, context=251, vocab=300, init_std=0.2)
SHORT = SHAPE.model_copy(update={"context": 16})
LLAMA = Model(family="llama", layers=3, heads=4, kv_heads=2, width=40, hidden=64, context=251, vocab=300, init_std=0.2)
GREEDY = Settings(temperature=0, past_end=True)
PROMPTS = ["the stoker", "a", "a heap of coal warms the old engine. The grate", "lights"]
PARROT = """\
import torch
from torch import nn

class Parrot(nn.Module):
    '''Whatever it reads, it generates the next token of its script.'''

    def __init__(self, shape):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape.context, shape.vocab))

    def forward(self, tokens):
        return self.weight[: tokens.shape[1]].expand(len(tokens), -1, -1)

build = Parrot
"""


@pytest.fixture(scope="module")
def tokenizer(tokens: Path) -> LoadedTokenizer:
    return load_folder(tokens / "tokenizer")


def random_model(shape: Model) -> nn.Module:
    return new_model(shape, seed=1).eval()


@pytest.fixture
def parrot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: LoadedTokenizer):
    """A model that generates a given text, in tokens of single bytes where the tokenizer has no longer ones."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parrot.py").write_text(PARROT)

    def generate_text(text: str, settings: Settings, then_end: bool = False) -> tuple[list[TextPiece], list[int]]:
        script = tokenizer.tokenizer.encode(text).ids + [tokenizer.end_id] * then_end
        shape = Model(family="parrot:build", context=200, vocab=300)
        model = model_spec(shape.family).build(shape)
        with torch.no_grad():
            model.weight[range(len(script)), script] = 1000.0
        return list(generate(model, shape, tokenizer.tokenizer, tokenizer.end_id, [""], settings)), script

    return generate_text


def rows(pieces: Iterator[TextPiece]) -> list[tuple[str, str, list[int]]]:
    """(text, how it ended, tokens) of each row."""
    texts: dict[int, str] = {}
    endings = {}
    for piece in pieces:
        assert piece.row not in endings, "nothing comes after the end of a row"
        texts[piece.row] = texts.get(piece.row, "") + piece.text
        if piece.ending:
            endings[piece.row] = piece.ending
    return [(texts[row], endings[row].reason, endings[row].ids) for row in sorted(endings)]


def write(shape: Model, tokenizer: LoadedTokenizer, prompts: Sequence[str], settings: Settings):
    return rows(generate(random_model(shape), shape, tokenizer.tokenizer, tokenizer.end_id, prompts, settings))


def gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(GPT2Config(n_layer=3, n_head=3, n_embd=39, n_positions=251, vocab_size=300))


def llama() -> PreTrainedModel:
    config = LlamaConfig(
        num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, hidden_size=40, intermediate_size=64,
        max_position_embeddings=251, vocab_size=300, rms_norm_eps=1e-5,
    )  # fmt: skip
    return LlamaForCausalLM(config)


@torch.no_grad()
@pytest.mark.parametrize(("shape", "theirs"), [(SHAPE, gpt2), (LLAMA, llama)], ids=["gpt2", "llama"])
def test_greedy_text_is_the_references_for_200_tokens(
    tokenizer: LoadedTokenizer, shape: Model, theirs: Callable[[], PreTrainedModel]
) -> None:
    reference = theirs().eval()
    reference.generation_config.update(eos_token_id=None, bos_token_id=None, pad_token_id=0)
    model = random_model(shape)
    reference.load_state_dict(model_spec(shape.family).to_hf(model.state_dict()), strict=False)
    generated = rows(generate(model, shape, tokenizer.tokenizer, tokenizer.end_id, PROMPTS, GREEDY))
    for prompt, (text, reason, ids) in zip(PROMPTS, generated, strict=True):
        given = torch.tensor([tokenizer.tokenizer.encode(prompt).ids])
        wanted = reference.generate(given, max_new_tokens=200, do_sample=False)[0, given.shape[1] :].tolist()
        assert (len(ids), ids) == (200, wanted)
        assert len(set(ids)) > 10, "a model that repeats itself proves little"
        assert (text, reason) == (tokenizer.tokenizer.decode(ids), "length")
    same_length = torch.tensor([tokenizer.tokenizer.encode(prompt).ids[:1] for prompt in PROMPTS])
    batch = reference.generate(same_length, max_new_tokens=200, do_sample=False)[:, 1:].tolist()
    starts = [tokenizer.tokenizer.decode(ids) for ids in same_length.tolist()]
    assert [
        ids for _, _, ids in rows(generate(model, shape, tokenizer.tokenizer, tokenizer.end_id, starts, GREEDY))
    ] == batch


@pytest.mark.parametrize("shape", [SHAPE, SHORT], ids=["within the context", "beyond it"])
@pytest.mark.parametrize("settings", [GREEDY, Settings(seed=3, top_p=0.95, samples=2)], ids=["greedy", "drawn"])
def test_a_row_is_the_same_alone_and_in_any_batch(tokenizer: LoadedTokenizer, shape: Model, settings: Settings) -> None:
    settings = Settings(**{name: getattr(settings, name) for name in settings.__slots__} | {"tokens": 40})
    prompts = [prompt[i:] for i in range(6) for prompt in PROMPTS]
    together = write(shape, tokenizer, prompts, settings)
    assert len(together) == 24 * settings.samples
    number = settings.samples
    for i in (0, 1, 2, 3, 10, 23):
        assert write(shape, tokenizer, [prompts[i]], settings) == together[i * number : (i + 1) * number]


def test_each_seed_and_each_sample_gives_its_own_text(tokenizer: LoadedTokenizer) -> None:
    first = write(SHAPE, tokenizer, ["a"], Settings(tokens=20, samples=3))
    assert write(SHAPE, tokenizer, ["a"], Settings(tokens=20, samples=3)) == first
    assert len({text for text, _, _ in first}) == 3
    assert write(SHAPE, tokenizer, ["a"], Settings(tokens=20)) == first[:1]
    assert write(SHAPE, tokenizer, ["a"], Settings(tokens=20, seed=1)) != first[:1]


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-320}])
def test_the_narrowest_choice_is_the_most_likely_token(tokenizer: LoadedTokenizer, narrow: dict[str, float]) -> None:
    wanted = write(SHAPE, tokenizer, PROMPTS, Settings(tokens=30, temperature=0))
    assert write(SHAPE, tokenizer, PROMPTS, Settings(tokens=30, **narrow)) == wanted


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (Settings(temperature=1), [0.1, 0.4, 0.2, 0.3]),
        (Settings(temperature=0.5), [0.01 / 0.3, 0.16 / 0.3, 0.04 / 0.3, 0.09 / 0.3]),
        (Settings(temperature=1, top_k=2), [0, 4 / 7, 0, 3 / 7]),
        (Settings(temperature=1, top_k=99), [0.1, 0.4, 0.2, 0.3]),
        (Settings(temperature=1, top_p=0.65), [0, 4 / 7, 0, 3 / 7]),
        (Settings(temperature=1, top_p=0.75), [0, 4 / 9, 2 / 9, 3 / 9]),
        (Settings(temperature=1, top_k=3, top_p=0.5), [0, 4 / 7, 0, 3 / 7]),
    ],
    ids=["plain", "cold", "top-k", "all", "top-p", "more", "both"],
)
def test_tokens_are_sampled_by_their_probabilities(settings: Settings, wanted: list[float]) -> None:
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64).log().expand(10_000, -1) + 3
    chances = torch.arange(10_000, dtype=torch.float64) / 10_000
    shares = torch.bincount(draw(logits, chances, settings), minlength=4) / 10_000
    assert shares.tolist() == pytest.approx(wanted, abs=2e-4)
    assert (shares == 0).tolist() == [share == 0 for share in wanted]


def test_a_token_of_probability_0_is_never_sampled() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf]] * 2, dtype=torch.float64)
    chances = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    for settings in (Settings(), Settings(top_p=0.5), Settings(top_k=2)):
        assert draw(logits, chances, settings).tolist() == [1, 1]


def test_text_is_streamed_in_complete_characters(parrot) -> None:
    text = "naïve 日本語 🚂🚃 e\u0301nd"
    pieces, script = parrot(text, Settings(temperature=0, tokens=100), then_end=True)
    assert "".join(piece.text for piece in pieces) == text
    assert len(script) > len(text), "characters of several tokens are what this is about"
    assert not any("\ufffd" in piece.text for piece in pieces)
    assert len(pieces) > 10
    assert pieces[-1].ending.reason == "end"
    assert pieces[-1].ending.ids == script[:-1]


def test_an_incomplete_character_at_the_end_is_shown_as_such(parrot) -> None:
    pieces, script = parrot("coal 🚂", Settings(temperature=0, tokens=100))
    whole = len(script)
    pieces, _ = parrot("coal 🚂", Settings(temperature=0, tokens=whole - 1))
    assert "".join(piece.text for piece in pieces) == "coal \ufffd"
    assert pieces[-1].ending.reason == "length"


@pytest.mark.parametrize(
    ("stop", "wanted", "reason"),
    [
        (("the engine",), "The stoker feeds ", "stop"),
        (("x", "feeds the", "engine"), "The stoker ", "stop"),
        (("engine. And", "stops!"), "The stoker feeds the engine. An engine stops. Ende", "end"),
        (("🚂",), "The stoker feeds the engine. An engine stops. Ende", "end"),
        (("T",), "", "stop"),
        (("e.",), "The stoker feeds the engin", "stop"),
    ],
)
def test_a_stop_string_ends_the_text_and_is_cut_off(parrot, stop: tuple[str, ...], wanted: str, reason: str) -> None:
    text = "The stoker feeds the engine. An engine stops. Ende"
    pieces, _ = parrot(text, Settings(temperature=0, tokens=150, stop=stop), then_end=True)
    assert "".join(piece.text for piece in pieces) == wanted
    assert pieces[-1].ending.reason == reason


def test_the_beginning_of_a_stop_string_is_held_back_and_then_returned(parrot) -> None:
    pieces, script = parrot("engine engine", Settings(temperature=0, tokens=150, stop=("engines",)), then_end=True)
    shown = [piece.text for piece in pieces]
    assert "".join(shown) == "engine engine"
    assert shown[-1] == "engine"
    assert len(pieces[-1].ending.ids) == len(script) - 1


def test_the_end_token_ends_a_row_unless_past_end_is_set(parrot) -> None:
    pieces, script = parrot("coal", Settings(temperature=0, tokens=9, past_end=True), then_end=True)
    assert "".join(piece.text for piece in pieces).startswith("coal")
    assert (pieces[-1].ending.reason, len(pieces[-1].ending.ids)) == ("length", 9)
    assert pieces[-1].ending.ids[: len(script)] == script


@torch.no_grad()
def test_beyond_the_context_it_continues_from_the_newest_tokens(tokenizer: LoadedTokenizer) -> None:
    model = random_model(SHORT)
    prompt = 2 * PROMPTS[2]
    ids = tokenizer.tokenizer.encode(prompt).ids
    assert len(ids) > 16
    (_, _, generated), *_ = rows(
        generate(
            model,
            SHORT,
            tokenizer.tokenizer,
            tokenizer.end_id,
            [prompt],
            Settings(tokens=50, temperature=0, past_end=True),
        )
    )
    window, wanted = ids[-16:], []
    for _ in generated:
        wanted.append(int(model(torch.tensor([window]))[0, -1].argmax()))
        window = [*window, wanted[-1]]
        window = window if len(window) <= 16 else window[-12:]
    assert generated == wanted


def test_a_model_with_a_context_of_one_token_still_generates(tokenizer: LoadedTokenizer) -> None:
    shape = SHAPE.model_copy(update={"context": 1})
    ((_, _, ids),) = write(shape, tokenizer, ["the stoker"], Settings(tokens=5, temperature=0, past_end=True))
    assert len(ids) == 5


def test_an_empty_prompt_starts_a_document(tokenizer: LoadedTokenizer) -> None:
    assert write(SHAPE, tokenizer, [""], GREEDY) == write(SHAPE, tokenizer, ["<|endoftext|>"], GREEDY)


def test_a_token_that_the_tokenizer_does_not_know_is_never_sampled(tokenizer: LoadedTokenizer) -> None:
    shape = SHAPE.model_copy(update={"vocab": 1500})
    for settings in (Settings(tokens=60, past_end=True), GREEDY):
        assert all(max(ids) < 300 for _, _, ids in write(shape, tokenizer, PROMPTS, settings))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0}, "top-p is 0"),
        ({"top_p": 1.5}, r"top-p is 1\.5"),
        ({"top_k": 0}, "top-k is 0"),
        ({"tokens": 0}, "tokens is 0"),
        ({"samples": -3}, "samples is -3"),
        ({"stop": ("x", "")}, "a stop word is empty"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        Settings(**settings)


def test_a_tokenizer_that_is_too_large_for_the_model_is_refused(tokenizer: LoadedTokenizer) -> None:
    shape = SHAPE.model_copy(update={"vocab": 290})
    with pytest.raises(UserError, match=r"and the model knows 290 tokens\. .*--tokenizer DIR"):
        generate(
            random_model(shape),
            shape,
            tokenizer.tokenizer,
            tokenizer.end_id,
            ["the stoker feeds the boiler"],
            Settings(),
        )


@pytest.mark.parametrize("settings", [GREEDY, Settings()], ids=["greedy", "drawn"])
def test_weights_that_are_not_finite_are_reported(tokenizer: LoadedTokenizer, settings: Settings) -> None:
    model = random_model(SHAPE)
    with torch.no_grad():
        model.ln_f.weight[3] = torch.nan
    with pytest.raises(RunFailed, match="its weights are not finite"):
        list(generate(model, SHAPE, tokenizer.tokenizer, tokenizer.end_id, ["a"], settings))

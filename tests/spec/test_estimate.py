import pytest

from stoker.spec.estimate import activation_bytes, flops_per_token, parameters, state_bytes
from stoker.spec.model import Model
from stoker.spec.presets import presets

VOCAB = 50257


def model(name: str) -> Model:
    return Model.model_validate(presets("model")[name].document.values)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("gpt2-small", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
    ],
)
def test_parameters_are_those_of_the_published_models(name: str, number: int) -> None:
    assert parameters(model(name), VOCAB) == number


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("llama2-7b", 6_738_415_616),
        ("llama2-13b", 13_015_864_320),
        ("llama2-70b", 68_976_648_192),
        ("llama3.1-8b", 8_030_261_248),
        ("llama3.1-70b", 70_553_706_496),
        ("llama3.2-1b", 1_235_814_400),
        ("llama3.2-3b", 3_212_749_824),
    ],
)
def test_llamas_parameters_are_those_of_the_published_models(name: str, number: int) -> None:
    llama = model(name)
    assert parameters(llama, llama.vocab or 0) == number


def test_a_llamas_flops_count_its_head_and_leave_out_its_embedding_and_norms() -> None:
    llama = model("llama2-70b")
    weights = 68_976_648_192 - 32000 * 8192 - 161 * 8192
    assert flops_per_token(llama, 32000, 4096, counted=0) == 6 * weights + 12 * 80 * 8192 * 4096


def test_heads_that_share_keys_need_less_memory_for_a_sequence() -> None:
    llama = model("llama-tiny")
    alone = llama.model_copy(update={"kv_heads": None})
    saved = activation_bytes(alone, VOCAB, 256, "bf16") - activation_bytes(llama, VOCAB, 256, "bf16")
    assert saved == 256 * 4 * 3 * 128 * 2


@pytest.mark.parametrize(("name", "number"), [("bert-base", 110_106_428), ("bert-large", 336_226_108)])
def test_parameters_of_bert_are_those_of_the_published_models_with_both_heads(name: str, number: int) -> None:
    assert parameters(model(name), 30_522) == number


def test_the_flops_of_bert_are_those_that_its_published_utilisation_counts() -> None:
    large = model("bert-large")
    wanted = 12 * large.layers * large.width * 128 * (6 * large.width + 128)
    assert 128 * flops_per_token(large, 30_522, 128, counted=0) == wanted


def test_flops_are_six_for_each_weight_in_a_product_and_attention_over_the_full_square() -> None:
    small = model("gpt2-small")
    weights = 124_439_808 - 1024 * 768 - 12 * 13 * 768 - 2 * 768  # without positions, biases and norms
    assert flops_per_token(small, VOCAB, 1024, counted=124_439_808) == 6 * weights + 12 * 12 * 768 * 1024


def test_the_flops_of_the_users_own_model_are_six_for_each_counted_parameter() -> None:
    assert flops_per_token(Model(family="mine:build"), VOCAB, 1024, counted=1_000) == 6_000


def test_training_state_is_sixteen_bytes_a_parameter() -> None:
    state = state_bytes(124_439_808)
    assert state.total == 16 * 124_439_808
    assert state.optimizer == 2 * state.weights == 2 * state.gradients


def test_activations_halve_with_the_precision_but_for_the_fp32_softmax() -> None:
    small = model("gpt2-small")
    softmax = 1024 * VOCAB * 4
    full = activation_bytes(small, VOCAB, 1024, "fp32") - softmax
    assert activation_bytes(small, VOCAB, 1024, "bf16") - softmax == full // 2

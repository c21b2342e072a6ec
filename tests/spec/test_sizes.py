import pytest

from stoker.spec.presets import presets
from stoker.spec.run import Model
from stoker.spec.sizes import activation_bytes, flops_per_token, parameters, state_bytes

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


def test_flops_are_six_for_each_weight_in_a_product_and_attention_over_the_full_square() -> None:
    small = model("gpt2-small")
    weights = 124_439_808 - 1024 * 768 - 12 * 13 * 768 - 2 * 768  # without positions, biases and norms
    assert flops_per_token(small, VOCAB, 1024, counted=124_439_808) == 6 * weights + 12 * 12 * 768 * 1024


def test_the_flops_of_a_model_of_the_users_own_are_six_for_each_parameter_that_was_counted() -> None:
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

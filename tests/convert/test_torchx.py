"""A `torchx run` command becomes a run file, and no argument is dropped silently."""

from pathlib import Path
from typing import Any

import pytest

from stoker.convert.run_file import read_manifest, run_file
from stoker.spec.errors import UserError
from stoker.spec.load import load

HERE = Path(__file__).parent
S2 = {"PWD": "/home/me/bert", "ECR_REPO": "000000000000.dkr.ecr.us-west-2.amazonaws.com/eks_torchx_tutorial"}


def read(text: str, variables: dict[str, str] | None = None) -> tuple[dict[str, Any], dict[str, str]]:
    values, outcomes = read_manifest(text, "run.sh", "torchx", variables or {})
    return values, dict(outcomes)


def test_the_trainium_tutorials_command_becomes_a_run_file(tmp_path: Path) -> None:
    values, outcomes = read((HERE / "s2-torchx.sh").read_text(), S2)
    assert values["name"] == "berttrain"
    assert values["script"] == "/home/me/bert/docker/dp_bert_large_hf_pretrain_hdf5.py"
    assert values["args"][:4] == ["--batch_size", "16", "--grad_accum_usteps", "32"]
    assert values["env"]["XLA_DOWNCAST_BF16"] == "1"
    on = values["on"]
    assert (on["nodes"], on["workers"], on["instance"], on["queue"]) == (2, 32, "trn1.32xlarge", "test")
    assert (on["registry"], on["image"]) == (S2["ECR_REPO"], f"{S2['ECR_REPO']}:bert_pretrain")
    [container] = on["pod"]["spec"]["containers"]
    assert container["volumeMounts"] == [{"name": "mount-0", "mountPath": "/data"}]
    assert container["env"][0]["value"] == "--cache_dir=/data/neuron_cache/bert-large_$(STOKER_NODE)"
    assert on["volume"] == "fsx-claim"
    assert not outcomes["options.--precompile"].is_used
    assert len(outcomes) == 15
    (tmp_path / "run.yaml").write_text(run_file(values, list(outcomes.items()), source="run.sh"))
    assert load(tmp_path / "run.yaml", []).spec.model_dump(exclude_unset=True)["on"]["nodes"] == "2"


def test_a_ddp_command_becomes_a_run_file() -> None:
    values, outcomes = read((HERE / "ddp-torchx.sh").read_text())
    assert (values["name"], values["script"], values["args"]) == (
        "resnet", "/app/main.py", ["--epochs", "3", "--note", "two words"],
    )  # fmt: skip
    on = values["on"]
    assert (on["nodes"], on["workers"], on["instance"], on["max_restarts"]) == ("1..2", 8, "p4d.24xlarge", 3)
    assert (on["queue"], on["namespace"], on["service_account"]) == ("default", "train", "trainer")
    assert on["volume"] == "data"
    assert values["env"] == {
        "LR": "0.1", "CUDA_LAUNCH_BLOCKING": "1", "NCCL_DESYNC_DEBUG": "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
        "TORCH_SHOW_CPP_STACKTRACES": "1",
    }  # fmt: skip
    assert values["secrets"] == {"WANDB_API_KEY": "env:WANDB_API_KEY"}
    assert "abc" not in str(values)
    unused = {field for field, outcome in outcomes.items() if not outcome.is_used}
    assert unused == {"run.--wait", "options.--rdzv_port", "options.--colour"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kubectl apply -f x", "holds no `torchx run`"),
        ("torchx run -s kubernetes -cfg queue=test", "names no component"),
        ("torchx run -s kubernetes 'dist.ddp", "a shell cannot parse"),
        (
            """torchx run -s kubernetes x.py:generateAppDef --script x.py --script_args "it's" """,
            "--script_args holds a line that a shell cannot parse",
        ),
        ("torchx run -s slurm dist.ddp --script x.py", "scheduler is slurm"),
        ("torchx run dist.ddp --script x.py", "scheduler is not set"),
        ("torchx run -s kubernetes utils.echo --msg hi", "component utils.echo is not known"),
        ("torchx run -s kubernetes dist.ddp -m train", "runs module train"),
        ("torchx run -s kubernetes dist.ddp -j two --script x.py", "-j two"),
        ("torchx run -s kubernetes dist.ddp -j 2x8", "names no script"),
        ("torchx run -s kubernetes dist.ddp --script x.py --mounts src=a", "--mounts src=a begins with src"),
        ("torchx run -s kubernetes dist.ddp --script x.py --image $REPO:1", "--set REPO=VALUE"),
        ("torchx run -s kubernetes dist.ddp --script x.py --cpu many", "--cpu"),
    ],
)
def test_a_command_that_cannot_be_converted_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        read(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)

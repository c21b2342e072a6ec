"""Write the manifests of every example for every kind of job.

python tests/golden/regenerate.py
"""

from pathlib import Path

from stoker.backends.kubernetes import manifest
from stoker.backends.kubernetes.jobs import KINDS
from stoker.backends.kubernetes.plan import NO_CLUSTER, plan
from stoker.spec.load import load

HERE = Path(__file__).parent
EXAMPLES = sorted(path.parent for path in (HERE.parents[1] / "examples").glob("*/run.yaml"))
COMMON = (
    "on.kind=kubernetes",
    "on.image=example/image:1",
    "on.registry=example/runs",
    "on.volume=training",
    "on.namespace=team",
)
OWN = {  # what makes one differ from the next: each key is seen in some manifest
    "00-demo": ("on.nodes=2", "on.workers=2"),
    "01-own-text": ("on.nodes=1..3", "on.workers=1", "on.cpu=1.5", "on.memory=3GiB", "secrets=[HF_TOKEN]"),
    "02-gpt2-small": ("on.nodes=2", "on.instance=p4d.24xlarge", "on.spot=true", "on.priority=training"),
    "03-script": ("on.nodes=2", "on.instance=trn1.32xlarge", "on.workers=auto", "on.service_account=trainer"),
    "04-own-code": ("on.pod={spec: {containers: [{name: pytorch, imagePullPolicy: Always}], hostIPC: true}}",),
    "05-bert": ("on.nodes=1..4", "on.instance=g5.12xlarge", "on.tolerations=[team=nlp:NoSchedule]"),
    "06-llama": ("on.nodes=4..16", "on.instance=p5.48xlarge", "on.image_secrets=[registry]", "on.grace=10m"),
}

OF_KIND = {  # what one kind of job alone has
    ("03-script", "trainjob"): ("on.runtime=torch-distributed",),
    ("04-own-code", "job"): ("on.network_policy=true",),
    ("05-bert", "pytorchjob"): ("on.autoscale={cpu: 80}",),
    ("05-bert", "vcjob"): ("on.queue=nlp", "on.queue_make={weight: 2, capability: {cpu: 384}}"),
    ("06-llama", "jobset"): ("on.queue=research",),  # Kueue's
}


def golden(example: Path, job: str) -> Path:
    return HERE / f"{example.name}-{job}.yaml"


def made(example: Path, job: str) -> str:
    words = (*COMMON, f"on.job={job}", *OWN.get(example.name, ()), *OF_KIND.get((example.name, job), ()))
    run = Path("runs") / f"{example.name[3:]}-abcd"
    return manifest.text(plan(load(example / "run.yaml", words).spec, NO_CLUSTER, run).objects)


if __name__ == "__main__":
    for example in EXAMPLES:
        for job in KINDS:
            golden(example, job).write_text(made(example, job))

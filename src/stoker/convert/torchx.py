"""A `torchx run` command -> the values of a run file, and the outcome of each argument."""

import re
import shlex
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

from stoker.convert.pod import LOGS, RENDEZVOUS, SECRET, Values
from stoker.convert.tracked import ConversionOutcome, Field, FieldOutcome, TrackedDocument
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.load import clean_name

KIND = "torchx"
SHORT = {"-s": "--scheduler", "-cfg": "--scheduler_args"}
FLAGS = ("--dryrun", "--wait", "--log")
CFG = {
    "queue": "queue",
    "namespace": "namespace",
    "service_account": "service_account",
    "priority_class": "priority",
    "image_repo": "registry",
}
DEBUG = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "NCCL_DESYNC_DEBUG": "1",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
}
MOUNTS = {"destination": "dst", "target": "dst", "source": "src", "read_only": "readonly"}
SHAPE = re.compile(r"(?:(?:(\d+):)?(\d+)x)?(\d+)")
# Set by the code of the Trainium component, not by its arguments.
TRAINIUM = {"FI_EFA_FORK_SAFE": "1", "NEURON_RT_RESET_CORES": "1", "XLA_TRANSFER_SEED_ASYNC": "1"}
TRAINIUM_CLAIM, TRAINIUM_FOLDER = "fsx-claim", "/data"


def read_command(text: str, name: str) -> dict[str, Any]:
    """The command as a document: options of TorchX, the component, its options, and the arguments after them."""
    argv = _split(text.replace("\\\n", " "), name, comments=True)
    starts = [index for index, argument in enumerate(argv) if PurePosixPath(argument).name == "torchx"]
    if len(starts) != 1 or "run" not in argv[starts[0] + 1 :]:
        raise UserError(f"{name} holds no `torchx run`", remedy="Give a file with one such command, as you type it")
    rest = argv[argv.index("run", starts[0]) + 1 :]
    options, rest = _options(rest, flags=FLAGS)
    if not rest:
        raise UserError(f"{name} names no component", remedy="Write one, such as dist.ddp, after torchx's own options")
    component_options, args = _options(rest[1:])
    run = {SHORT.get(key, key): value for key, value in options.items()}
    if isinstance(cfg := run.get("--scheduler_args"), str):
        run["--scheduler_args"] = dict(argument.partition("=")[::2] for argument in cfg.split(","))
    command = {"run": run, "component": rest[0], "options": component_options, "args": args}
    return {key: value for key, value in command.items() if value}


def convert(command: dict[str, Any]) -> tuple[Values, list[FieldOutcome]]:
    document = TrackedDocument(command)
    root = document.root
    kind = str(root["component"].value).rpartition(":")[2]
    if kind not in COMPONENTS:
        raise UserError(
            f"component {root['component'].value} is not known",
            remedy=f"stoker import-config torchx takes {', '.join(COMPONENTS)}",
        )
    root["component"].used("script: Stoker does what the component does with its arguments")
    on = {"kind": "kubernetes", "job": "vcjob"} | _run(root["run"])
    options = root["options"]
    values: Values = {"script": _script(options, root["run"], on), "args": [], "env": {}, "secrets": {}, "on": on}
    values["name"] = _name(options["--name"], values["script"])
    on |= {"image": options["--image"].used("on.image")} if options["--image"] else {}
    COMPONENTS[kind](root, values)
    values = {"name": values.pop("name")} | values
    return {key: value for key, value in values.items() if value not in ([], {})}, document.report()


def _ddp(root: Field, values: Values) -> None:
    options, on = root["options"], values["on"]
    values["args"] = [str(argument) for argument in root["args"].used("args") or []]
    if shape := options["-j"] or options["--j"]:
        on |= _shape(str(shape.used("on.nodes and on.workers")))
    if host := options["-h"] or options["--h"]:
        on["instance"] = str(host.used("on.instance")).removeprefix("aws_")
    for name, key, unit in (("--cpu", "cpu", ""), ("--gpu", "gpus", ""), ("--memMB", "memory", "MB")):
        if options[name]:
            amount = options[name].used(f"on.{key}")
            on[key] = f"{amount}{unit}" if unit else _number(amount)
    if retries := options["--max_retries"]:
        on["max_restarts"] = _number(retries.used("on.max_restarts"))
    if env := options["--env"]:
        _variables(env, values)
    if debug := options["--debug"]:
        values["env"] |= DEBUG if debug.used("env") == "True" else {}
    if mounts := options["--mounts"]:
        _mounts(_parsed_mounts(str(mounts.used("on.volume and on.pod"))), on)
    for name in ("--rdzv_port", "--rdzv_backend", "--rdzv_conf"):
        options[name].unused(RENDEZVOUS)
    options["--tee"].unused(LOGS)


def _trainium(root: Field, values: Values) -> None:
    """generateAppDef of the BERT tutorial, whose code sets the volume and the variables."""
    options, on = root["options"], values["on"]
    if args := options["--script_args"]:
        values["args"] = _split(str(args.used("args")), "--script_args")
    for name, key in (("--nnodes", "nodes"), ("--nproc_per_node", "workers")):
        if options[name]:
            on[key] = _number(options[name].used(f"on.{key}"))
    instance = options["--instance_type"]
    on["instance"] = str(instance.used("on.instance")) if instance else "trn1.32xlarge"
    values["env"] |= TRAINIUM
    if (bf16 := options["--bf16"]) and bf16.used("env.XLA_DOWNCAST_BF16") == "True":
        values["env"]["XLA_DOWNCAST_BF16"] = "1"
    _mounts([{"type": "volume", "src": TRAINIUM_CLAIM, "dst": TRAINIUM_FOLDER}], on)
    caches = str(options["--cacheset"].used("NEURON_CC_FLAGS, in on.pod: each node's own cache") or "default")
    flags = f"--cache_dir={TRAINIUM_FOLDER}/neuron_cache/{caches}_$({contract.ENV_NODE})"
    _container(on)["env"] = [{"name": "NEURON_CC_FLAGS", "value": flags}]
    options["--precompile"].unused("the script compiles in its first steps")


COMPONENTS: dict[str, Callable[[Field, Values], None]] = {
    "dist.ddp": _ddp,
    "dist.spmd": _ddp,
    "generateAppDef": _trainium,
}


def _split(text: str, name: str, *, comments: bool = False) -> list[str]:
    try:
        return shlex.split(text, comments=comments)
    except ValueError as e:
        raise UserError(f"{name} holds a line that a shell cannot parse ({e})", remedy="Close its quotes") from e


def _options(argv: list[str], flags: tuple[str, ...] = ()) -> tuple[dict[str, Any], list[str]]:
    """`--name value` and `--name=value`, up to the first word that is neither, or `--`; and the rest."""
    options: dict[str, Any] = {}
    while argv and argv[0].startswith("-") and argv[0] != "--":
        name, equals, value = argv[0].partition("=")
        if name in flags:
            options[name], argv = True, argv[1:]
        elif equals:
            options[name], argv = value, argv[1:]
        else:
            options[name], argv = argv[1] if len(argv) > 1 else "", argv[2:]
    return options, argv[1:] if argv[:1] == ["--"] else argv


def _run(run: Field) -> Values:
    scheduler = run["--scheduler"]
    if scheduler.value != "kubernetes":
        raise UserError(
            f"TorchX's scheduler is {scheduler.value or 'not set'}",
            remedy="stoker import-config torchx takes commands with -s kubernetes",
        )
    scheduler.used("on.kind and on.job")
    on = {key: field.used(f"on.{key}") for name, key in CFG.items() if (field := run["--scheduler_args"][name])}
    if "registry" in on:
        run["--workspace"].used("script's folder, which is added to the image")
    else:
        run["--workspace"].unused("set on.registry, where the run's image is pushed, to add your files to the image")
    run["--dryrun"].unused("use: stoker launch --dry-run")
    for name in ("--wait", "--log"):
        run[name].unused("stoker logs RUN -f follows a run until it ends")
    run["--parent_run_id"].unused("Stoker's runs have no parents")
    return on


def _script(options: Field, run: Field, on: Values) -> str:
    if module := options["-m"] or options["--m"]:
        raise UserError(
            f"the component runs module {module.value}, and Stoker runs a file",
            remedy=f"Run a file of two lines: import runpy; runpy.run_module({module.value!r}, run_name='__main__')",
        )
    script = str(options["--script"].used("script") or "")
    if not script:
        raise UserError("the component names no script", remedy="Write --script FILE after it")
    workspace = re.sub("^(file:)?/+", "/", str(run["--workspace"].value or ""))
    local = "registry" in on and workspace and not script.startswith("/")
    return str(PurePosixPath(workspace) / script) if local else script


def _name(name: Field, script: str) -> str:
    """The app of `app/role`, or the script's name."""
    app = str(name.used("name") or "").partition("/")[0] or PurePosixPath(script).stem
    return clean_name(app.lower())[: contract.MAX_RUN_NAME]


def _shape(text: str) -> Values:
    match = SHAPE.fullmatch(text)
    if not match:
        raise UserError(f"-j {text} is not the shape of a job", remedy="Write it as NODESxWORKERS, such as 2x8")
    least, most, workers = match.groups()
    nodes: Any = f"{least}..{most}" if least and least != most else int(most or 1)
    return {"nodes": nodes, "workers": int(workers)}


def _variables(env: Field, values: Values) -> None:
    env.used("env")
    for name, _, value in (assignment.partition("=") for assignment in re.split(r"[,;](?=\w+=)", str(env.value))):
        if SECRET.search(name):
            values["secrets"][name] = f"env:{name}"
            env.document.outcomes[env.path] = ConversionOutcome(
                f"env; {name} looks like a secret: set it where you launch"
            )
        else:
            values["env"][name] = value


def _parsed_mounts(text: str) -> list[dict[str, str]]:
    mounts: list[dict[str, str]] = []
    for key, _, value in (setting.partition("=") for setting in text.split(",")):
        if key == "type":
            mounts.append({})
        if not mounts:
            raise UserError(f"--mounts {text} begins with {key}", remedy="Write type=volume,src=CLAIM,dst=/data")
        mounts[-1][MOUNTS.get(key, key)] = value
    return mounts


def _mounts(mounts: list[dict[str, str]], on: Values) -> None:
    spec = on.setdefault("pod", {}).setdefault("spec", {})
    for number, mount in enumerate(mounts):
        source = mount.get("src", "")
        if mount["type"] == "volume":
            on.setdefault("volume", source)
            volume: Values = {"persistentVolumeClaim": {"claimName": source}}
        else:
            volume = {"hostPath": {"path": source}}
        volume_mount: Values = {"name": f"mount-{number}", "mountPath": mount.get("dst", source)}
        volume_mount |= {"readOnly": True} if "readonly" in mount else {}
        spec.setdefault("volumes", []).append({"name": f"mount-{number}"} | volume)
        _container(on).setdefault("volumeMounts", []).append(volume_mount)


def _container(on: Values) -> Values:
    spec = on.setdefault("pod", {}).setdefault("spec", {})
    container: Values = spec.setdefault("containers", [{"name": contract.CONTAINER}])[0]
    return container


def _number(value: Any) -> Any:
    return int(value) if str(value).isdecimal() else value

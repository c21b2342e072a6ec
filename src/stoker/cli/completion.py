"""`stoker completion`: a script that completes verbs, options and the names of runs in a shell.

It is generated from the parsers of the verbs, so a new verb or option needs no change here.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from stoker.cli.main import VERBS, add_arguments
from stoker.spec import contract

INSTALL = """\
bash:  stoker completion bash > ~/.local/share/bash-completion/completions/stoker
zsh:   stoker completion zsh > ~/.zfunc/_stoker   (with ~/.zfunc in fpath, before compinit)
fish:  stoker completion fish > ~/.config/fish/completions/stoker.fish
"""

RUNS = {"RUN", "MODEL", "WHERE"}  # arguments that may be the name of a run


@dataclass(frozen=True, kw_only=True, slots=True)
class Verb:
    name: str
    help: str
    options: list[argparse.Action]
    takes: str
    """The kind of its first argument: `runs`, `files`, `both`, or the possible values."""


def completion_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=sorted(SHELLS), metavar="bash|zsh|fish", help="your shell")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = INSTALL


def completion(args: argparse.Namespace) -> int:
    print(SHELLS[args.shell](list(_verbs())), end="")
    return contract.EXIT_DONE


def _verbs() -> Iterator[Verb]:
    for name, (_, line) in VERBS.items():
        parser = argparse.ArgumentParser(prog=f"stoker {name}")
        add_arguments(name, parser)
        actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
        argument = next((action for action in actions if not action.option_strings), None)
        options = [action for action in actions if action.option_strings]
        yield Verb(name=name, help=line, options=options, takes=_takes(argument))


def _takes(argument: argparse.Action | None) -> str:
    if argument is None:
        return ""
    if argument.choices:
        return " ".join(map(str, argument.choices))
    names = str(argument.metavar).split(" ")[0].split("|")
    if names == ["RUN"]:
        return "runs"
    return "both" if RUNS.intersection(names) else "files"


def _flags(verb: Verb) -> str:
    return " ".join(flag for option in verb.options for flag in option.option_strings)


def _bash(verbs: list[Verb]) -> str:
    cases = "\n".join(f'        {verb.name}) takes="{verb.takes}" flags="{_flags(verb)}" ;;' for verb in verbs)
    return BASH.replace("@VERBS@", " ".join(verb.name for verb in verbs)).replace("@CASES@", cases)


def _zsh(verbs: list[Verb]) -> str:
    named = "\n".join(f"        {_quoted(f'{verb.name}:{verb.help}')}" for verb in verbs)
    cases = "\n".join(f'        {verb.name}) takes="{verb.takes}" flags=({_flags(verb)}) ;;' for verb in verbs)
    return ZSH.replace("@VERBS@", named).replace("@CASES@", cases)


def _fish(verbs: list[Verb]) -> str:
    lines = []
    for verb in verbs:
        lines.append(f"complete -c stoker -n __fish_use_subcommand -f -a {verb.name} -d {_quoted(verb.help)}")
        on = f"complete -c stoker -n '__fish_seen_subcommand_from {verb.name}'"
        for option in verb.options:
            flags = " ".join(_fish_flag(flag) for flag in option.option_strings)
            value = "" if option.nargs == 0 else " -r"
            lines.append(f"{on} {flags}{value} -d {_quoted((option.help or '').replace('%%', '%'))}")
        if verb.takes in ("runs", "both"):
            lines.append(f"{on} {'-f ' if verb.takes == 'runs' else ''}-a '(__stoker_runs)'")
        elif verb.takes != "files":
            lines.append(f"{on} -f -a {_quoted(verb.takes)}")
    return FISH + "\n".join(lines) + "\n"


def _fish_flag(flag: str) -> str:
    return f"-{'l' if flag.startswith('--') else 's'} {flag.lstrip('-')}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}

BASH = r"""# stoker completion for bash
_stoker() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
    local runs=${STOKER_RUNS:-runs} takes= flags= i file
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "@VERBS@" -- "$word"))
        return
    fi
    for ((i = 2; i < COMP_CWORD; i++)); do
        [[ ${COMP_WORDS[i]} == --runs ]] && runs=${COMP_WORDS[i+1]/#\~/$HOME}
    done
    case ${COMP_WORDS[1]} in
@CASES@
    esac
    if [[ $before == --runs || $before == -o || $before == --out ]]; then
        takes=files
    elif [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "$flags" -- "$word"))
        return
    fi
    if [[ $takes == runs || $takes == both ]]; then
        for file in "$runs"/*/spec.yaml; do
            [[ -f $file ]] && file=${file%/spec.yaml} && COMPREPLY+=($(compgen -W "${file##*/}" -- "$word"))
        done
    fi
    if [[ $takes == files || $takes == both || ( $takes == runs && $word == */* ) ]]; then
        compopt -o filenames 2>/dev/null
        COMPREPLY+=($(compgen -f -- "$word"))
    elif [[ $takes != runs ]]; then
        COMPREPLY=($(compgen -W "$takes" -- "$word"))
    fi
}
complete -F _stoker stoker
"""

ZSH = r"""#compdef stoker
_stoker() {
    local runs=${STOKER_RUNS:-runs} takes= i
    local -a verbs flags names
    verbs=(
@VERBS@
    )
    if ((CURRENT == 2)); then
        _describe verb verbs
        return
    fi
    for ((i = 3; i < CURRENT; i++)); do
        [[ ${words[i]} == --runs ]] && runs=${words[i+1]/#\~/$HOME}
    done
    case ${words[2]} in
@CASES@
    esac
    if [[ ${words[CURRENT-1]} == (--runs|-o|--out) ]]; then
        _files
        return
    fi
    if [[ ${words[CURRENT]} == -* ]]; then
        compadd -- $flags
        return
    fi
    names=($runs/*/spec.yaml(N:h:t))
    case $takes in
        runs) compadd -- $names; [[ ${words[CURRENT]} == */* ]] && _files -/ ;;
        both) compadd -- $names; _files ;;
        files) _files ;;
        *) compadd -- ${=takes} ;;
    esac
}
if [[ ${funcstack[1]} == _stoker ]]; then _stoker "$@"; else compdef _stoker stoker; fi
"""

FISH = r"""# stoker completion for fish
function __stoker_runs
    set -l runs runs
    test -n "$STOKER_RUNS"; and set runs $STOKER_RUNS
    set -l words (commandline -opc)
    set -l at (contains -i -- --runs $words); and set runs $words[(math $at + 1)]
    for file in $runs/*/spec.yaml
        path basename (path dirname $file)
    end
end
"""

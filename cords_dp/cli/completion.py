"""``cords-dp completion SHELL``: the line that teaches a shell to complete, by argcomplete (an optional extra)."""

from __future__ import annotations

import argparse
from typing import Any

from cords_dp.cli.arguments import add_command
from cords_dp.errors import ConfigError, how_to_install

_SHELLS = ("bash", "zsh", "fish")


def add_commands(commands: Any) -> None:
    parser = add_command(
        commands,
        "completion",
        completion,
        "print what makes a shell complete commands and options (needs argcomplete)",
        "completion bash >> ~/.bashrc",
        "completion zsh >> ~/.zshrc",
        "completion fish > ~/.config/fish/completions/cords-dp.fish",
    )
    parser.add_argument("shell", choices=_SHELLS, help="bash, zsh or fish")


def completion(args: argparse.Namespace) -> int:
    try:
        import argcomplete
    except ImportError:
        raise ConfigError("completion", args.shell, f"needs argcomplete: {how_to_install('completion')}") from None
    print(argcomplete.shellcode(["cords-dp"], shell=args.shell))
    return 0


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks what may follow, and exit; without argcomplete there is no answer."""
    try:
        import argcomplete
    except ImportError:
        return
    argcomplete.autocomplete(parser)

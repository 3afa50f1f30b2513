"""Options that a command with a script behind it does not have."""

from difflib import get_close_matches

import typer


def unknown_option(ctx: typer.Context, first: str) -> str | None:
    """What is wrong if the first word of a script is an option that was mistyped; the parser lets it pass.

    `-m` is not an option of the command: it belongs to the script.
    """
    if not first.startswith("-") or first == "-m":
        return None
    name = first.partition("=")[0]
    known = [option for parameter in ctx.command.params for option in parameter.opts if option.startswith("-")]
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"its options are {', '.join(known)}."
    return f"`thinwire {ctx.info_name}` has no option {name!r}; {hint}"

"""What `tmux` and `screen` run in a terminal of its own: a script starts itself there again, or types its command into one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from rlstep_hooks.launch.text import Token

TERMINALS = frozenset({"tmux", "screen"})

_OPENS = frozenset({"new-session", "new", "new-window", "neww", "split-window", "splitw", "respawn-pane", "respawnp"})
"""Commands of tmux that take a shell command: one word is read by a shell, several are the command itself (tmux(1), "new-session")."""
_TYPES = frozenset({"send-keys", "send"})
_KEYS = {"C-m": "\n", "Enter": "\n", "KPEnter": "\n", "C-j": "\n", "Space": " ", "C-c": "", "C-l": "", "C-u": ""}
"""Words that `send-keys` takes for keys, and what a shell gets of them."""
_TAKE_VALUE = {
    "tmux": frozenset({"-c", "-e", "-F", "-f", "-l", "-L", "-n", "-N", "-p", "-s", "-S", "-t", "-x", "-y"}),
    "screen": frozenset({"-c", "-e", "-h", "-Logfile", "-p", "-s", "-S", "-t", "-T"}),
}


def in_terminal(tokens: tuple[Token, ...]) -> tuple[Token, ...]:
    """The command that runs in the terminal: one word is text for a shell; empty where none is given.

    Args:
        tokens: The words of the command, from `tmux` or `screen` on.
    """
    name = tokens[0].text.rpartition("/")[2]
    rest = _behind_options(tokens[1:], name)
    if name == "screen":
        # `-dmS NAME` starts it detached; without -m an argument may name a session to come back to.
        return rest if any(_starts_detached(token.text) for token in tokens[1:]) else ()
    if not rest or rest[0].text not in _OPENS | _TYPES:
        return ()
    words = _behind_options(rest[1:], name)
    return _typed(words) if rest[0].text in _TYPES else words


def _starts_detached(word: str) -> bool:
    return word.startswith("-") and not word.startswith("--") and "m" in word[1:]


def _behind_options(tokens: tuple[Token, ...], name: str) -> tuple[Token, ...]:
    """The words behind the options; of several letters in one the last takes the value: `-dmS NAME`."""
    index = 0
    while index < len(tokens) and tokens[index].text.startswith("-"):
        word = tokens[index].text
        if word == "--":
            return tokens[index + 1 :]
        # A value may be joined to its letter: `-sNAME`.
        joined = len(word) > 2 and f"-{word[1]}" in _TAKE_VALUE[name]
        takes = not joined and (word in _TAKE_VALUE[name] or f"-{word[-1]}" in _TAKE_VALUE[name])
        index += 2 if takes else 1
    return tokens[index:]


def _typed(keys: tuple[Token, ...]) -> tuple[Token, ...]:
    """What a shell reads of the keys that are sent to it, as one word."""
    if not keys:
        return ()
    text = "".join(_KEYS.get(key.text, key.text) for key in keys)
    unknown = tuple(each for key in keys for each in key.unknown)
    return (msgspec.structs.replace(keys[0], text=text, unknown=unknown),) if text.strip() else ()

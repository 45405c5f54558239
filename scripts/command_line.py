"""Reads the command line of a script: words, and options as --NAME=TEXT or, for switches, --NAME. Used by the scripts."""
import sys


def read(usage, given, switches=(), words=(2, 2)):
    """The words, and the options: `given` with what was typed in place of its defaults; a switch that was typed is "yes".

    Ends the script with `usage` if an option is not in `given`, or there are fewer or more words than `words` says; None
    there is any number."""
    given, found = dict(given), []
    for word in sys.argv[1:]:
        name, equals, text = word[2:].partition("=")
        if not word.startswith("--"):
            found.append(word)
        elif name in given and bool(equals) != (name in switches):
            given[name] = text or ("yes" if name in switches else "")
        else:
            sys.exit(usage)
    fewest, most = words
    if len(found) < fewest or most is not None and len(found) > most:
        sys.exit(usage)
    return found, given

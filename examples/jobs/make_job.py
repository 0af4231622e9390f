#!/usr/bin/env python3
"""Converts the commands of make, or a compilation database, into a job for `forebay submit --job`.

    cd project && make_job.py -- make -f plain.mk all > job.json
    make_job.py --database build/compile_commands.json > job.json
    forebay submit --follow --dir . --job job.json --output src/lua

Runs `make -n` in a clean tree and creates a task for each command that compiles, archives, links or creates a symbolic link.
A task reads the files that its command names and, for C sources, the headers that `-MM` finds, so that a changed header
reruns only the tasks that include it. The farm creates directories automatically. Commands that only clean up or print (rm,
mkdir, echo) are left out. Any other command is an error, because the job would not be the same build. Use --leave-out WORD
to leave out the commands that begin with WORD.

--test 'src/lua {}' 't/*.lua' adds a task for each file that the glob matches.
"""

import argparse
import glob
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import PurePosixPath

COMPILERS = re.compile(r"(.*[-/])?(cc|gcc|g\+\+|c\+\+|clang|clang\+\+)(-[0-9.]+)?$")
ARCHIVERS = re.compile(r"(.*[-/])?ar$")
# Commands that change the output of an earlier task; they are added to that task.
IN_PLACE = re.compile(r"(.*[-/])?(ranlib|strip|chmod|mv)$")
LINKS = ("ln",)
IGNORED = {"echo", "mkdir", "rmdir", "rm", "test", "[", "true", ":", "touch", "printf", "exit", "cd"}
MAKE = re.compile(r"(.*/)?(g?make)(\[[0-9]+\])?$")
WITH_VALUE = ("-o", "-I", "-L", "-D", "-U", "-include", "-isystem", "-x", "-MF", "-MT", "-MQ", "-T")


class NoJob(Exception):
    """An error that is shown to the user: no job can be made."""


class Tasks:
    """The tasks collected so far, and the task that makes each file."""

    def __init__(self, root, leave_out):
        self.root = root
        self.leave_out = set(leave_out)
        self.tasks = []
        self.makers = {}

    def path(self, folder, word):
        """The path of `word` relative to the root, for a command that starts in `folder`; None if it is outside the root."""
        full = os.path.normpath(os.path.join(self.root, folder, word))
        relative = os.path.relpath(full, self.root)
        return None if relative.startswith("..") else relative

    def file(self, folder, word):
        """The same path if it is a file of the project or the output of a task, else None."""
        path = self.path(folder, word) if word else None
        if path is None:
            return None
        return path if path in self.makers or os.path.isfile(os.path.join(self.root, path)) else None

    def add(self, folder, argv, inputs, outputs, identity=None):
        task = {"id": task_id(identity or outputs[0]), "command": argv}
        task["inputs"] = sorted(set(inputs) - set(outputs))
        if outputs:
            task["outputs"] = outputs
        if folder not in ("", "."):
            task["folder"] = folder
        for path in outputs:
            if path in self.makers:
                raise NoJob(f"two tasks make {path}: start in a clean tree")
            self.makers[path] = task
        self.tasks.append(task)

    def command(self, folder, argv):
        """Adds the task of a simple command, if it needs one."""
        program = argv[0]
        if program in self.leave_out or program in IGNORED or MAKE.match(program):
            return
        if COMPILERS.match(program):
            self.compile_or_link(folder, argv)
        elif ARCHIVERS.match(program):
            library = next(word for word in argv[1:] if word.endswith(".a"))
            self.add(folder, argv, self.named(folder, argv[1:]), [self.inside(folder, library)])
        elif IN_PLACE.match(program):
            self.in_place(folder, argv)
        elif os.path.basename(program) in LINKS:
            target, link = [word for word in argv[1:] if not word.startswith("-")]
            beside = os.path.join(os.path.dirname(link), target)
            inputs = [path for path in [self.file(folder, beside)] if path]
            self.add(folder, argv, inputs, [self.inside(folder, link)])
        else:
            raise NoJob(f"unsupported command: {shlex.join(argv)}  (use --leave-out {shlex.quote(program)} to skip it)")

    def inside(self, folder, word):
        path = self.path(folder, word)
        if path is None:
            raise NoJob(f"{word} is outside {self.root}: set --root to a folder that contains it")
        return path

    def compile_or_link(self, folder, argv):
        output = value_of(argv, "-o")
        sources = [word for word in plain_words(argv) if re.search(r"\.(c|cc|cpp|cxx|C|s|S|m)$", word)]
        if "-c" in argv and output is None:
            output = str(PurePosixPath(sources[0]).with_suffix(".o").name)
        output = self.inside(folder, output or "a.out")
        inputs = self.named(folder, argv[1:]) + self.libraries(folder, argv)
        if sources:
            inputs += self.headers(folder, argv)
        self.add(folder, argv, [path for path in inputs if path != output], [output])

    def named(self, folder, words):
        """The files that the words name, also after a comma or an equals sign."""
        parts = (part for word in words for part in {word, *re.split("[,=]", word)})
        return [path for path in (self.file(folder, part) for part in parts) if path]

    def libraries(self, folder, argv):
        """The libraries of the project that `-l` options name."""
        folders = [word[2:] for word in argv if word.startswith("-L") and len(word) > 2]
        names = [word[2:] for word in argv if word.startswith("-l") and len(word) > 2]
        files = (os.path.join(f, f"lib{name}{end}") for name in names for f in folders for end in (".so", ".a"))
        return [path for path in (self.file(folder, file) for file in files) if path]

    def headers(self, folder, argv):
        """The files of the project that the preprocessor reads."""
        asked = [word for at, word in enumerate(argv) if word not in ("-c", "-o") and (at == 0 or argv[at - 1] != "-o")]
        where = os.path.join(self.root, folder)
        try:
            found = subprocess.run([*asked, "-MM"], cwd=where, capture_output=True, text=True, check=False)
        except OSError as error:
            raise NoJob(f"cannot run {asked[0]}: {error.strerror}") from None
        if found.returncode != 0:
            raise NoJob(f"{shlex.join(asked)} -MM: {found.stderr.strip()}")
        rules = found.stdout.replace("\\\n", " ").splitlines()
        words = (word for rule in rules for word in rule.partition(": ")[2].split())
        return [path for path in (self.path(folder, word) for word in words) if path]

    def in_place(self, folder, argv):
        """Adds a command to the task that makes the file that it changes or moves."""
        words = [word for word in argv[1:] if not word.startswith("-")]
        path = self.path(folder, words[0] if os.path.basename(argv[0]) == "mv" else words[-1])
        task = self.makers.get(path)
        if task is None:
            raise NoJob(f"unsupported command: {shlex.join(argv)}  (no earlier task makes {path})")
        script = task["command"][2] if task["command"][:2] == ["sh", "-c"] else shlex.join(task["command"])
        task["command"] = ["sh", "-c", f"{script} && {shlex.join(argv)}"]
        if os.path.basename(argv[0]) == "mv":
            if os.path.dirname(words[0]):
                # The farm creates only the folders of outputs, and this folder no longer contains one.
                task["command"][2] = f"mkdir -p {shlex.quote(os.path.dirname(words[0]))} && " + task["command"][2]
            moved = self.inside(folder, words[1])
            task["outputs"] = [moved if output == path else output for output in task["outputs"]]
            task["id"] = task_id(moved)
            self.makers[moved] = self.makers.pop(path)

    def test(self, template, pattern):
        """Adds a task for each file that `pattern` matches."""
        files = sorted(glob.glob(pattern, root_dir=self.root, recursive=True))
        if not files:
            raise NoJob(f"--test: no file matches {pattern}")
        for file in files:
            argv = [word.replace("{}", file) for word in shlex.split(template)]
            self.add("", argv, self.named("", argv), [], identity=f"test/{file}")


def task_id(path):
    return re.sub(r"[^A-Za-z0-9_./+:=@-]", "_", path)[-200:]


def value_of(argv, flag):
    """The value of `-o x` or `-ox`."""
    for at, word in enumerate(argv):
        if word == flag:
            return argv[at + 1]
        if word.startswith(flag) and len(word) > len(flag):
            return word[len(flag) :]
    return None


def plain_words(argv):
    """The arguments that are neither flags nor values of flags."""
    return [
        word
        for at, word in enumerate(argv)
        if at > 0 and not word.startswith("-") and argv[at - 1] not in WITH_VALUE
    ]


def simple_commands(line):
    """The simple commands of a shell line, without redirections; of `a || b` only a."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    command, alternative, redirected = [], False, False
    for token in [*lexer, ";"]:
        if token in (";", "&&", "||", ";;"):
            if command and not alternative:
                yield command
            command, alternative = [], token == "||"
        elif set(token) <= {"(", ")"}:
            alternative = alternative and ")" not in token
        elif set(token) <= {">", "<", "&"}:
            if command and command[-1].isdigit():
                command.pop()
            redirected = True
        elif redirected:
            redirected = False
        else:
            command.append(token)


def of_make(tasks, argv):
    """Adds the tasks of the commands that make would run."""
    try:
        made = subprocess.run(
            [argv[0], "-n", "-w", *argv[1:]],
            cwd=tasks.root,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError as error:
        raise NoJob(f"cannot run {argv[0]}: {error.strerror}") from None
    if made.returncode != 0:
        raise NoJob(f"{shlex.join(argv)} -n failed: {made.stderr.strip()}")
    folders = []
    for line in made.stdout.replace("\\\n", " ").splitlines():
        entering = re.match(r"\S*make(?:\[\d+\])?: Entering directory '(.*)'$", line)
        if entering:
            folders.append(os.path.relpath(entering[1], tasks.root))
        elif re.match(r"\S*make(\[\d+\])?: Leaving directory", line):
            folders.pop()
        elif not re.match(r"\S*make(\[\d+\])?: ", line):
            folder = folders[-1] if folders else ""
            for command in simple_commands(line):
                if command[0] == "cd" and len(command) == 2:
                    folder = os.path.normpath(os.path.join(folder, command[1]))
                else:
                    tasks.command(os.path.normpath(folder) if folder else "", command)


def of_database(tasks, file):
    """Adds the tasks of the commands in a compilation database."""
    with open(file, encoding="utf-8") as opened:
        entries = json.load(opened)
    for entry in entries:
        argv = entry.get("arguments") or shlex.split(entry["command"])
        folder = tasks.path("", entry["directory"])
        if folder is None:
            raise NoJob(f"{entry['directory']} is outside {tasks.root}: set --root to a folder that contains it")
        tasks.command(folder, argv)


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="\n".join(__doc__.splitlines()[2:]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--root", default=".", help="workspace folder of the job")
    parser.add_argument("--database", help="read a compilation database instead of running make")
    parser.add_argument("--leave-out", action="append", default=[], metavar="WORD")
    parser.add_argument("--test", nargs=2, action="append", default=[], metavar=("COMMAND", "GLOB"))
    parser.add_argument("--platform", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("make", nargs="*", default=["make"], help="make command to run, after --")
    return parser.parse_args()


def main():
    args = arguments()
    tasks = Tasks(os.path.realpath(args.root), args.leave_out)
    try:
        if args.database:
            of_database(tasks, args.database)
        else:
            of_make(tasks, args.make)
        for template, pattern in args.test:
            tasks.test(template, pattern)
        if not tasks.tasks:
            raise NoJob("there is nothing to build: start in a clean tree")
    except NoJob as error:
        sys.exit(f"make_job: {error}")
    platform = dict(pair.split("=", 1) for pair in args.platform)
    defaults = f'  "defaults": {json.dumps({"platform": platform})},\n' if platform else ""
    lines = ",\n".join(f"    {json.dumps(task)}" for task in tasks.tasks)
    print(f'{{\n{defaults}  "tasks": [\n{lines}\n  ]\n}}')


if __name__ == "__main__":
    main()

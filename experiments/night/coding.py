"""Scripted coding turns: what the model of an opencode session says and which tools it calls"""

from __future__ import annotations

import json
from typing import Any

from experiments.night.projects import Project
from experiments.night.script import Call, Step
from experiments.night.words import Writer

Steps = tuple[Step, ...]


def as_written(writer: Writer, arguments: dict[str, Any]) -> str:
    """Arguments as models write them: mostly tidy, some with odd blanks, order or escapes."""
    rng = writer.rng
    roll = rng.random()
    if roll < 0.35:
        return json.dumps(arguments, ensure_ascii=False)
    if roll < 0.6:
        return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    if roll < 0.68:
        return json.dumps(arguments, ensure_ascii=False, indent=2)
    if roll < 0.76:
        return json.dumps(arguments, separators=(", ", ": "))
    if roll < 0.84:
        return json.dumps(arguments, ensure_ascii=False).replace("/", "\\/")
    shuffled = list(arguments.items())
    rng.shuffle(shuffled)
    text = json.dumps(dict(shuffled), ensure_ascii=False)
    if roll < 0.92:
        return "{ " + text[1:-1] + " }"
    for name, value in arguments.items():
        if isinstance(value, int):
            text = text.replace(f'"{name}": {value}', f'"{name}": {value}.0')
    return text


class Coder:
    """Writes the turns of one session; edits are planned on functions nobody else edits."""

    def __init__(self, seed: int, label: str, project: Project) -> None:
        self.writer = Writer(f"{seed}/session/{label}")
        self.project = project
        self._unread = list(project.big())
        self.writer.rng.shuffle(self._unread)

    # -- small pieces

    def call(self, name: str, **arguments: Any) -> Call:
        """A call with an id of its own."""
        ident = f"call_{self.writer.rng.getrandbits(96):024x}"
        return Call(ident, name, as_written(self.writer, arguments))

    def thinking_tokens(self) -> int:
        """Most thoughts are short, a few are long."""
        return min(1800, int(self.writer.rng.lognormvariate(4.4, 0.9)))

    def step(self, *calls: Call, say: int = -1, think: int = -1) -> Step:
        """A step with tool calls; half of them say a line too. `say`, `think`: tokens."""
        rng = self.writer.rng
        think = self.thinking_tokens() if think < 0 else think
        reasoning = "" if think >= 0 and rng.random() < 0.06 else self.writer.thought(think)
        content = ""
        if say > 0:
            content = self.writer.prose(say)
        elif say < 0 and rng.random() < 0.5:
            content = self.writer.sentence() + rng.choice(("", "", "\n\n", " ", "\n"))
            content = rng.choice(("", "", "", "\n\n")) + content
        return Step(reasoning, content, calls)

    def answer(self, tokens: int = 0, think: int = -1) -> Step:
        """The last step of a turn."""
        rng = self.writer.rng
        tokens = tokens or int(rng.lognormvariate(5.4, 0.6))
        think = self.thinking_tokens() if think < 0 else think
        return Step(self.writer.thought(think), self.writer.answer(tokens))

    def path(self, path: str) -> str:
        """The absolute path, as the tools want it."""
        return "{CWD}/" + path

    def next_file(self) -> str:
        """A big file this session has not read whole yet (the oldest again when all are)."""
        if not self._unread:
            self._unread = list(self.project.big())
        return self._unread.pop(0)

    def read(self, path: str, offset: int = 0, limit: int = 0) -> Call:
        """A read of the whole file or of some lines."""
        if offset or limit:
            return self.call("read", filePath=self.path(path), offset=offset, limit=limit)
        return self.call("read", filePath=self.path(path))

    def _target(self) -> tuple[str, str, int]:
        """(path, a function's head that no edit has touched, its line)."""
        paths = [path for path, heads in self.project.free.items() if heads]
        path = self.writer.rng.choice(paths)
        heads = self.project.free[path]
        head = heads.pop(self.writer.rng.randrange(len(heads)))
        return path, head, self.project.files[path].split(head)[0].count("\n") + 1

    def _edit(self, path: str, head: str) -> Call:
        lines = head.split("\n")
        quote = '"""' if self.project.language == "python" else ""
        start = "    " if quote else "  // "
        sentence = self.writer.sentence().replace('"', "'").replace("`", "")
        changed = f"{lines[0]}\n{start}{quote}{sentence}{quote}"
        self.project.files[path] = self.project.files[path].replace(head, changed)
        return self.call("edit", filePath=self.path(path), oldString=head, newString=changed)

    def _name(self, head: str) -> str:
        return head.split("(", 1)[0].split()[-1]

    # -- turns: each is (prompt, steps)

    def survey(self) -> tuple[str, Steps]:
        """A first look around."""
        language = {"python": "py", "javascript": "js"}.get(self.project.language, "md")
        look = "git log --oneline | head -n 5; ls -la . *" if self.project.git else "ls -la . *"
        steps = (
            self.step(
                self.call("bash", command=look, description="Look around the folder"), say=12
            ),
            self.step(self.call("glob", pattern=f"**/*.{language}"), self.read("README.md")),
            self.step(self.read("docs/design.md")),
            self.answer(420),
        )
        ask = f"Get to know this folder and tell me what {self.project.name} does. "
        return ask + self.writer.sentence(), steps

    def study(self, files: int) -> tuple[str, Steps]:
        """Reads whole files: this is what makes contexts long."""
        paths = [self.next_file() for _ in range(files)]
        pattern = self.writer.rng.choice(("limit", "assert", self.writer.noun()))
        steps = [self.step(self.call("grep", pattern=pattern, include="*.*"))]
        for first, second in zip(paths[::2], [*paths[1::2], None], strict=False):
            both = [self.read(path) for path in (first, second) if path]
            steps += [self.step(*both)] if self.writer.rng.random() < 0.3 else map(self.step, both)
        steps.append(self.answer())
        names = " and ".join(path.rsplit("/", 1)[-1] for path in paths)
        return f"Read {names} from top to end: {self.writer.sentence()}", tuple(steps)

    def change(self, edits: int = 1) -> tuple[str, Steps]:
        """Finds a function, reads around it, edits it, checks the file."""
        steps: list[Step] = []
        names = []
        for _ in range(edits):
            path, head, line = self._target()
            names.append(self._name(head))
            steps.append(self.step(self.call("grep", pattern=names[-1], path="{CWD}")))
            steps.append(self.step(self.read(path, max(1, line - 10), 60)))
            steps.append(self.step(self._edit(path, head)))
            check = self.project.check_command(path)
            steps.append(self.step(self.call("bash", command=check, description="Check the file")))
        if self.project.git:
            diff = self.call("bash", command="git diff --stat", description="Show what changed")
            steps.append(self.step(diff))
        steps.append(self.answer(160))
        return f"Fix {' and '.join(names)}. {self.writer.sentence()}", tuple(steps)

    def stumble(self) -> tuple[str, Steps]:
        """Log, a call that is no JSON, an edit that does not match, then the right one."""
        path, head, line = self._target()
        name = self._name(head)
        search = "grep -n ERROR data/run.log | tail -n 25"
        broken = self.call("edit", filePath=self.path(path), oldString=head, newString=name)
        broken = Call(broken.id, broken.name, broken.arguments[: len(broken.arguments) * 2 // 3])
        guess = self.call("edit", filePath=self.path(path), oldString=name + " ()", newString=name)
        steps = (
            self.step(self.call("bash", command=search, description="Look for errors")),
            self.step(self.read("data/run.log", 200, 100)),
            self.step(broken),
            self.step(guess),
            self.step(self.read(path, max(1, line - 3), 30), think=500),
            self.step(self._edit(path, head)),
            self.step(self.call("bash", command=self.project.check_command(path))),
            self.answer(),
        )
        return f"The log shows errors around {name}: find out why and repair it", steps

    def create(self) -> tuple[str, Steps]:
        """A new file, run, and edited once more."""
        writer, python = self.writer, self.project.language == "python"
        stem = f"{writer.name()}_{writer.rng.randrange(100)}"
        path = f"tools/{stem}." + {"python": "py", "javascript": "js"}.get(
            self.project.language, "md"
        )
        title = writer.sentence().replace("`", "")
        if self.project.language == "text":
            body = f"# {stem}\n\n{title}\n\n{writer.prose(500)}\n"
        else:
            mark, line = ("#", "print") if python else ("//", "console.log")
            end = "" if python else ";"
            rows = [
                f"{line}('{writer.name()}', {writer.rng.randrange(999)}){end}" for _ in range(30)
            ]
            notes = [f"{mark} {writer.sentence()}" for _ in range(18)]
            body = "\n".join([f"{mark} {title}", *notes, *rows]) + "\n"
        run = {"python": "python3", "javascript": "node"}.get(self.project.language, "cat")
        self.project.files[path] = body.replace(title, "Changed: " + title)
        change = {"oldString": title, "newString": "Changed: " + title}
        steps = (
            self.step(self.call("glob", pattern="tools/*")),
            self.step(self.call("write", filePath=self.path(path), content=body), say=20),
            self.step(self.call("bash", command=f"{run} {path}", description="Run it")),
            self.step(self.call("edit", filePath=self.path(path), **change)),
            self.step(self.call("bash", command=f"{run} {path} | tail -n 4; wc -c {path}")),
            self.answer(),
        )
        return f"Write {path} for me. {writer.sentence()}", steps

    def chores(self) -> tuple[str, Steps]:
        """A to-do list that is worked off."""
        jobs = [self.writer.sentence().replace("`", "") for _ in range(3)]

        def todo(done: int) -> Call:
            states = ["completed"] * done + ["in_progress"] + ["pending"] * 3
            items = [
                {"content": job, "status": state, "priority": "medium"}
                for job, state in zip(jobs, states, strict=False)
            ]
            return self.call("todowrite", todos=items)

        steps = [self.step(todo(0), say=30)]
        for done in range(3):
            path, head, line = self._target()
            steps.append(self.step(self.read(path, line, 40)))
            steps.append(self.step(self._edit(path, head), todo(done + 1)))
        steps.append(self.answer())
        return "Please do these three: " + " ".join(jobs), tuple(steps)

    def figures(self) -> tuple[str, Steps]:
        """Numbers out of the data files."""
        count = "cut -d, -f1 data/levels.csv | sort | uniq -c | sort -rn | head -n 30"
        mean = "awk -F, 'NR>1 {s[$4]+=$3; n[$4]++} END {for (q in s) print q, s[q]/n[q], n[q]}'"
        steps = (
            self.step(self.call("bash", command="head -n 20 data/levels.csv; wc -l data/*")),
            self.step(
                self.call("bash", command=count, description="Count stations"),
                self.call("bash", command=mean + " data/levels.csv", description="Means"),
            ),
            self.step(self.read("data/levels.csv", self.writer.rng.randrange(1, 400), 200)),
            self.answer(),
        )
        return f"What do the levels say? {self.writer.sentence()}", steps

    def ponder(self, think: int, say: int = 500) -> tuple[str, Steps]:
        """A question that is only thought about."""
        paste = self.writer.prose(120)
        prompt = f"Think hard about this: {self.writer.sentence()}\n\n{paste}"
        return prompt, (self.answer(say, think),)

    def outline(self, files: int = 1) -> tuple[str, Steps]:
        """Planning without changing anything, as the plan agent has to."""
        steps = [self.step(self.call("grep", pattern=self.writer.noun(), path="{CWD}"))]
        steps += [self.step(self.read(self.next_file(), 1, 240)) for _ in range(files)]
        return f"Make a plan for this: {self.writer.sentence()}", (*steps, self.answer(600, 900))

    def delegate(self, kinds: tuple[str, ...]) -> tuple[str, Steps, list[tuple[str, Steps]]]:
        """Sub-agents; the third value is their (prompt, steps)."""
        calls, helpers = [], []
        for kind in kinds:
            name = self.writer.name()
            prompt = f"Find every place that touches {name} and report. {self.writer.paragraph(3)}"
            description = f"Look for {name}"
            calls.append(
                self.call("task", description=description, prompt=prompt, subagent_type=kind)
            )
            paths = [self.next_file() for _ in range(2)]
            look = self.call("grep", pattern=self.writer.noun(), path="{CWD}")
            steps = [self.step(look)]
            if kind == "general":
                steps.append(self.step(self.call("bash", command="ls -1 src tools | head -n 40")))
            steps += [self.step(self.read(path, 1, 300)) for path in paths]
            helpers.append((prompt, (*steps, self.answer(350))))
        steps = (self.step(*calls, say=25), self.answer(450))
        return f"Split this up: {self.writer.sentence()}", steps, helpers

    def long_text(self, tokens: int) -> tuple[str, Steps]:
        """An answer long enough to be stopped in its text."""
        return f"Explain in full: {self.writer.sentence()}", (self.answer(tokens, 120),)

    def long_write(self, tokens: int) -> tuple[str, Steps]:
        """A file long enough to be stopped in its tool call."""
        path = f"docs/{self.writer.name()}.md"
        call = self.call("write", filePath=self.path(path), content=self.writer.prose(tokens))
        steps = (self.step(call, say=15, think=80), self.answer())
        return f"Write {path}, a long one. {self.writer.sentence()}", steps

    def summary(self) -> Step:
        """The answer to a compaction."""
        writer = self.writer
        blocks = [
            f"## {title}\n" + "\n".join(f"- {writer.sentence()}" for _ in range(count))
            for title, count in (("Goal", 2), ("Done so far", 9), ("Open points", 5), ("Files", 6))
        ]
        return Step(writer.thought(400), "\n\n".join(blocks) + "\n")

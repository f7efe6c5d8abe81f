"""Scratch projects of the plan: four folders of generated code, documents and data"""

from __future__ import annotations

from dataclasses import dataclass, field

from experiments.night.words import ADJECTIVES, VERBS, Writer

_PYTHON = (
    "    {a} = [{b} * {k} for {b} in range({k2}) if {b} % {k3}]",
    "    if {p} is None:\n        return {k}",
    "    for {a} in sorted({p}, key=str):\n        {b} = {f}({a}, {k})\n        if {b} > {k2}:\n"
    "            break",
    "    {a} = sum(len(str({b})) for {b} in {p}) / {k}",
    '    {a} = {{"{b}": {k}, "{c}": {k2}.{k3}}}',
    '    while {a}_left := max(0, {k} - len(str({p}))):\n        {p} = f"{{{p}}} {{{a}_left}}"',
    "    # {s}",
    "    {a}, {b} = divmod(len(str({p})) + {k}, {k3})",
    '    assert {p} != "{c}", "{s}"',
    "    try:\n        {a} = float({p})\n    except (TypeError, ValueError):\n"
    "        {a} = {k}.{k2}",
)
_JAVASCRIPT = (
    "  const {a} = Array.from({{ length: {k} }}, (_, {b}) => {b} * {k2});",
    "  if ({p} === null) {{\n    return {k};\n  }}",
    "  for (const {a} of Object.keys({p})) {{\n    const {b} = {f}({a}, {k});\n"
    "    if ({b} > {k2}) break;\n  }}",
    '  let {a} = {{ {b}: {k}, {c}: "{s}" }};',
    "  // {s}",
    "  const {a} = String({p}).split('').filter(({b}) => {b} > '{k}').length;",
    "  try {{\n    JSON.parse({p});\n  }} catch ({a}) {{\n    return -{k3};\n  }}",
    "  {p} = `${{{p}}} {c} ${{{k} % {k3}}}`;",
)


@dataclass
class Project:
    """A folder as the plan knows it; `free` are the functions no planned edit has touched yet."""

    name: str
    language: str
    git: bool
    files: dict[str, str] = field(default_factory=dict)
    free: dict[str, list[str]] = field(default_factory=dict)

    def big(self) -> list[str]:
        """Source files, in the order they were made."""
        return list(self.free)

    def check_command(self, path: str) -> str:
        """A command that really checks the file."""
        if self.language == "javascript":
            return f"node --check {path} && echo ok"
        if self.language == "python":
            return f"python3 -m py_compile {path} && echo ok"
        return f"wc -l {path} && tail -n 3 {path}"


def _function(writer: Writer, language: str, name: str) -> tuple[str, str]:
    """(the function's text, its first lines: unique in the file, as the name is)."""
    rng = writer.rng
    forms = _PYTHON if language == "python" else _JAVASCRIPT
    parameter = writer.noun() + "_in"
    lines = []
    for _ in range(rng.randrange(3, 8)):
        words = {letter: f"{writer.noun()}_{rng.randrange(100)}" for letter in "abc"}
        numbers = {
            "k": rng.randrange(2, 500),
            "k2": rng.randrange(2, 90),
            "k3": rng.randrange(2, 9),
        }
        sentence = writer.sentence().replace('"', "'").replace("`", "")
        line = rng.choice(forms)
        lines.append(line.format(**words, **numbers, p=parameter, f=writer.name(), s=sentence))
    doc = writer.sentence().replace('"', "'").replace("`", "")
    value = rng.randrange(10, 9000)
    if language == "python":
        head = f'def {name}({parameter}, limit={value}):\n    """{doc}"""'
        return f"{head}\n" + "\n".join(lines) + f"\n    return [{parameter}, limit]\n", head
    head = f"function {name}({parameter}, limit = {value}) {{\n  // {doc}"
    return f"{head}\n" + "\n".join(lines) + f"\n  return [{parameter}, limit];\n}}\n", head


def _module(writer: Writer, project: Project, path: str, chars: int) -> None:
    """Adds a source file of about `chars` characters."""
    names: set[str] = set()
    heads: list[str] = []
    if project.language == "python":
        pieces = [f'"""{writer.sentence().replace(chr(96), "")}"""\n\nimport math\n\n']
    else:
        pieces = [f"'use strict';\n// {writer.sentence()}\n\n"]
    while sum(map(len, pieces)) < chars:
        name = f"{writer.rng.choice(VERBS)}_{writer.rng.choice(ADJECTIVES)}_{writer.noun()}"
        if name in names:
            continue
        names.add(name)
        text, head = _function(writer, project.language, name)
        pieces.append(text + "\n\n")
        heads.append(head)
    project.files[path] = "".join(pieces).rstrip("\n") + "\n"
    project.free[path] = heads


def _document(writer: Writer, title: str, chars: int) -> str:
    blocks = [f"# {title}"]
    while sum(map(len, blocks)) < chars:
        blocks.append(
            f"## {writer.noun().title()} {writer.noun()}\n\n{writer.answer(160, odd=0.0)}"
        )
    return "\n\n".join(blocks) + "\n"


def _table(writer: Writer, rows: int) -> str:
    rng = writer.rng
    lines = ["station,hour,level_m,quality,remark"]
    for row in range(rows):
        level = f"{rng.gauss(2.4, 1.1):.3f}"
        lines.append(f"{writer.noun()},{row % 24},{level},{rng.choice('ABC')},{writer.name()}")
    return "\n".join(lines) + "\n"


def _log(writer: Writer, lines: int) -> str:
    rng = writer.rng
    rows = []
    for line in range(lines):
        minute, level = divmod(line * 7, 60), rng.choice(("INFO", "INFO", "INFO", "WARN", "ERROR"))
        clock = f"2026-11-{1 + minute[0] // 24 % 28:02}T{minute[0] % 24:02}:{minute[1]:02}"
        rows.append(f"{clock} {level} {writer.noun()}: {writer.sentence()}")
    return "\n".join(rows) + "\n"


def _rules(writer: Writer, project: Project) -> str:
    rules = "\n".join(f"- {writer.sentence()}" for _ in range(12))
    return f"# Rules of {project.name}\n\n{rules}\n\nThe code is {project.language}.\n"


def make_projects(seed: int) -> dict[str, Project]:
    """The four folders: three git repositories with an AGENTS.md and a plain one without."""
    kinds = {
        "tidewatch": ("python", True, (26, 38, 31, 42, 35, 29, 40, 33, 44, 27, 37, 36, 41, 30)),
        "lanternd": ("javascript", True, (30, 41, 28, 36, 43, 33, 39, 31, 42, 35, 37, 40)),
        "orrery": ("python", True, (34, 42, 39, 28, 44, 37, 31, 40, 36, 43, 29, 38, 41)),
        "almanac": ("text", False, (24, 30, 19, 27)),
    }
    projects = {}
    for name, (language, git, sizes_kb) in kinds.items():
        writer = Writer(f"{seed}/project/{name}")
        project = projects[name] = Project(name, language, git)
        project.files["README.md"] = _document(writer, name, 2600)
        if git:
            project.files["AGENTS.md"] = _rules(writer, project)
        used: set[str] = set()
        for number, size_kb in enumerate(sizes_kb):
            stem = writer.noun()
            while stem in used:
                stem = writer.noun()
            used.add(stem)
            if language == "text":
                path = f"{('notes', 'guides')[number % 2]}/{stem}.md"
                project.files[path] = _document(writer, stem.title(), size_kb * 1000)
                project.free[path] = []
                continue
            folder = ("src", "src/core", "tools")[number % 3]
            suffix = "py" if language == "python" else "js"
            _module(writer, project, f"{folder}/{stem}.{suffix}", size_kb * 1000)
        project.files["docs/design.md"] = _document(writer, "Design", 14_000)
        project.files["data/levels.csv"] = _table(writer, 900)
        project.files["data/run.log"] = _log(writer, 320)
    return projects

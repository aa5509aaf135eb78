#!/usr/bin/env python3
"""Records two terminals while a daemon is killed under a stream between two VMs, and draws docs/recording.svg.

scripts/recording.py [LAB]     boots a lab, records docs/recording.jsonl, draws
scripts/recording.py --draw    draws what was recorded

Needs a build (`make build`), and jq. Each line of the recording is [seconds, terminal, what it printed].
"""
import fcntl, html, json, os, pty, re, select, struct, subprocess, sys, termios, time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "target/x86_64-unknown-linux-gnu/release"
RECORDING, PICTURE = ROOT / "docs/recording.jsonl", ROOT / "docs/recording.svg"
COLUMNS, PROMPT = 80, "$ "
TITLES = ["terminal 1: VM a sends to VM b", "terminal 2: the host"]


class Terminal:
    """A shell behind a pty, whose output is recorded."""

    def __init__(self, number, events, begun, environment):
        self.number, self.events, self.begun, self.text = number, events, begun, ""
        pid, self.fd = pty.fork()
        if pid == 0:
            os.execvpe("bash", ["bash", "--norc", "--noprofile"], environment)
        # A dumb terminal shows a part of a line that is too long, so the one of the long command is wider than
        # the picture.
        columns = COLUMNS if number else 2 * COLUMNS
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))

    def read(self):
        text = os.read(self.fd, 65536).decode()
        self.text += text
        self.events.append([round(time.monotonic() - self.begun, 2), self.number, text])

    def type(self, line):
        self.text = ""
        os.write(self.fd, line.encode() + b"\n")


def wait(terminals, condition, limit=600):
    """Records until the condition holds."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            sys.exit("recording: this never came: " + repr([terminal.text for terminal in terminals]))
        for fd in select.select([terminal.fd for terminal in terminals], [], [], 0.05)[0]:
            next(terminal for terminal in terminals if terminal.fd == fd).read()


def record(lab):
    environment = dict(os.environ, PATH=f"{PROGRAMS}:{os.environ['PATH']}", PS1=PROMPT, TERM="dumb")
    environment |= {"BASH_SILENCE_DEPRECATION_WARNING": "1", "PS2": ""}
    vmlane = lambda *words: subprocess.run(["vmlane", *words], env=environment, check=True, capture_output=True, text=True)
    vmlane("lab", "up", lab, "--device", "vmci")
    server = None
    try:
        status = json.loads(vmlane("lab", "status", lab, "--json").stdout)
        environment["VMLANE_RUNTIME_DIR"] = status["daemon"]["runtime_dir"]
        listen = ["vmlane", "lab", "exec", lab, "b", "--", "vmlane", "bench", "server", "--listen", "vsock:"]
        server = subprocess.Popen(listen, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        while "listening" not in server.stdout.readline():
            pass
        events, begun = [], time.monotonic()
        both = [Terminal(number, events, begun, environment) for number in range(2)]
        stream, host = both
        at_prompt = lambda terminal: terminal.text.endswith(PROMPT)
        wait(both, lambda: at_prompt(stream) and at_prompt(host))
        # The host's commands come between the lines of the stream, of which there is one a second.
        lines = lambda count: lambda: len(re.findall(r"bit/s +\d", stream.text)) >= count
        stream.type(f"vmlane lab exec {lab} a -- vmlane bench stream --to vsock:4 -i 1 -l 14 | grep bit/s")
        wait(both, lines(3))
        for line, then in [
            ("vmlane top --once", 6),
            ("kill -9 $(vmlane status --json | jq .pid)", 9),
            ("vmlane status", 12),
        ]:
            host.type(line)
            wait(both, lambda: at_prompt(host))
            wait(both, lines(then))
        wait(both, lambda: at_prompt(stream))
    finally:
        if server:
            server.terminate()
        vmlane("lab", "down", lab)
    RECORDING.write_text("".join(json.dumps(event) + "\n" for event in events))


def pieces(events, number):
    """What a terminal shows: [time, row, column, text]. Rows are never erased, and wrap at the width."""
    shown, row, column = [], 0, 0
    for at, terminal, text in events:
        if terminal != number:
            continue
        for part in re.findall(r"\r|\n|[^\r\n]+", re.sub(r"\x1b\[[?0-9;]*[A-Za-z]|[\x00-\x09\x0b\x0c\x0e-\x1f]", "", text)):
            if part == "\r":
                column = 0
            elif part == "\n":
                row += 1
            else:
                while part:
                    fits = part[: COLUMNS - column]
                    shown.append([at, row, column, fits])
                    column, part = column + len(fits), part[len(fits) :]
                    if part:
                        row, column = row + 1, 0
    return shown, row + 1


CELL, LINE, FONT, EDGE, HEAD = 9, 20, 15, 16, 34
STYLE = """text{font-family:"DejaVu Sans Mono","Liberation Mono",Menlo,Consolas,monospace;font-size:%dpx;fill:#1f2937;white-space:pre}
.head{font-family:"Helvetica Neue",Arial,"Liberation Sans","DejaVu Sans",sans-serif;font-weight:600}
.typed{font-weight:700}.card{fill:#fff;stroke:#d1d5db}.line{stroke:#d1d5db}
@media screen and (prefers-color-scheme:dark){text{fill:#e6edf3}.card{fill:#0d1117;stroke:#30363d}.line{stroke:#30363d}}
@media print,(prefers-reduced-motion:reduce){g{animation:none!important}}
""" % FONT


def draw():
    events = [json.loads(line) for line in RECORDING.read_text().splitlines()]
    # The last picture stays for a while, and comes first: what shows no motion shows all that was printed.
    length, first = events[-1][0] + 8, 5
    down, body, moments = EDGE, [], {}
    for number, title in enumerate(TITLES):
        shown, rows = pieces(events, number)
        body.append(f'<text class="head" x="{EDGE}" y="{down + 14}">{title}</text>')
        down += HEAD
        prompts = {row for _, row, _, text in shown if text.startswith(PROMPT)}
        for at, row, column, text in shown:
            typed = ' class="typed"' if row in prompts and not (column == 0 and text == PROMPT) else ""
            place = f'x="{EDGE + column * CELL}" y="{down + row * LINE}" textLength="{len(text) * CELL}" lengthAdjust="spacingAndGlyphs"'
            moments.setdefault(at, []).append(f"<text{typed} {place}>{html.escape(text, quote=False)}</text>")
        down += rows * LINE
        if number + 1 < len(TITLES):
            body.append(f'<path class="line" d="M0 {down}H{COLUMNS * CELL + 2 * EDGE}"/>')
            down += EDGE
    style, frames = STYLE, []
    for index, (at, texts) in enumerate(sorted(moments.items())):
        style += f"@keyframes k{index}{{0%{{visibility:hidden}}{100 * at / length:.2f}%{{visibility:visible}}}}\n"
        frames.append(f'<g style="animation:k{index} {length:.0f}s step-end {first - length:.0f}s infinite">{"".join(texts)}</g>')
    width, height = COLUMNS * CELL + 2 * EDGE, down
    PICTURE.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        'aria-label="A stream between two VMs continues while the daemon is killed">\n'
        f"<!-- Drawn by scripts/recording.py from docs/recording.jsonl. -->\n<style>\n{style}</style>\n"
        f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>\n'
        + "\n".join(body + frames)
        + "\n</svg>\n"
    )


if sys.argv[1:] != ["--draw"]:
    record(sys.argv[1] if sys.argv[1:] else "demo")
draw()

"""What the comparisons share: running `hysparse bench`, medians, the report."""
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile


def hysparse_bench(program, *arguments):
    """The medians of `hysparse bench`, by name."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "bench.json"
        command = [str(program), "bench", *map(str, arguments), "--json", str(out)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)}: {done.stderr}")
        return {r["name"]: r["median"] for r in json.loads(out.read_text())["results"]}


class Comparison:
    """Rounds of one figure on both sides; higher is better."""

    def __init__(self, name, unit, peer):
        self.name, self.unit, self.peer = name, unit, peer
        self.ours, self.theirs = [], []

    def add(self, ours, theirs):
        self.ours.append(ours)
        self.theirs.append(theirs)

    def result(self):
        ratios = [a / b for a, b in zip(self.ours, self.theirs)]
        return {"name": self.name, "unit": self.unit, "peer": self.peer, "hysparse": statistics.median(self.ours),
                "theirs": statistics.median(self.theirs), "ratio": statistics.median(ratios), "hysparse_runs": self.ours,
                "their_runs": self.theirs}

    def show(self):
        r = self.result()
        print(f"{r['name']:<28} hysparse {r['hysparse']:10.2f}  {self.peer} {r['theirs']:10.2f} {self.unit}  ratio {r['ratio']:.2f} "
              f"({len(self.ours)} rounds)", flush=True)


def report(path, command, comparisons, **about):
    if path:
        text = json.dumps({"command": command, **about, "results": [c.result() for c in comparisons]}, indent=2)
        pathlib.Path(path).write_text(text + "\n")

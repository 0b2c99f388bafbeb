"""The curves of a study's runs, finished or not, as tables: curves.py FOLDER | NAME.runs.tar.xz [EVERY steps, 200]"""
import json
import pathlib
import sys
import tarfile
import tempfile

source, every = pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 200
if source.is_file():
    folder = tempfile.mkdtemp()
    tarfile.open(source).extractall(folder, filter="data")
    source = pathlib.Path(folder)
for run in sorted((source / "runs").iterdir()):
    points = {}
    if (run / "curve.jsonl").exists():
        for line in (run / "curve.jsonl").read_text().splitlines():
            try:
                point = json.loads(line)
            except ValueError:  # cut short
                continue
            points[point["step"]] = point["accuracy"]
    logs = [*sorted(run.glob("*/log.jsonl")), *run.glob("speed.txt")]
    speeds = [line.split('"tokens_per_second":')[1].split(",")[0] for log in logs for line in log.read_text().splitlines() if '"tokens_per_second":' in line]
    print(f"{run.name}: {'done' if (run / 'result.json').exists() else 'not done'}, {float(speeds[-1]) if speeds else 0:,.0f} tokens/s at last")
    if not points:
        continue
    last, names = max(points), list(points[max(points)])
    print(" " * 5, *(f"{''.join(word[:5] if not word.isdigit() else word for word in name.split()):>10}" for name in names))
    for step in sorted(points):
        if step % every == 0 or step == last:
            print(f"{step:5}", *(f"{points[step].get(name, float('nan')):10.2f}" for name in names))

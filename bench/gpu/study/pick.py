"""Reads the pilots' curves and writes walk.json with the setting that full attention learned with soonest.
pick.py EXAMPLES PILOTS OUT"""
import glob
import json
import os
import sys

examples, pilots, out = sys.argv[1:4]
found = []
for file in sorted(glob.glob(f"{pilots}/?.json")):
    name = os.path.basename(file)[:-5]
    study = json.load(open(file))
    curve = {}
    for f in glob.glob(f"{pilots}/{name}/runs/*/curve.jsonl"):
        for line in open(f):
            try:
                point = json.loads(line)
                curve[point["step"]] = point["accuracy"]
            except ValueError:
                pass
    steps = sorted(curve)
    keys = [e["name"] for e in study["evaluations"]]
    at = {k: next((s for s in steps if curve[s][k] > 0.95), None) for k in keys}
    before = sum(p["train"]["steps"] for p in study["phases"][:-1])
    tokens = study["phases"][-1]["train"]["global_batch_size"] * study["phases"][-1]["tasks"][0]["length"]
    learned = [s for s in at.values() if s is not None]
    found.append(dict(name=name, learned=len(learned), last=max(learned, default=0), before=before,
                      seconds=max(learned, default=0) * (0.007 + tokens * 5e-7),
                      best={k: max((curve[s][k] for s in steps), default=0) for k in keys}, above_95_at=at,
                      lr=study["learning_rates"][0], phases=study["phases"], steps=steps[-1] if steps else 0,
                      curve=curve))
    p = found[-1]
    print(f"pilot {name}: lr {p['lr']}, {p['steps']} steps; above 0.95 at step {at}; best {p['best']}", flush=True)
json.dump(found, open(f"{out}/pilots.json", "w"))
p = sorted(found, key=lambda p: (-p["learned"], p["seconds"], -sum(p["best"].values())))[0]
j = json.load(open(f"{examples}/walk.json"))
j["learning_rates"] = [p["lr"] / 2, p["lr"]] if p["lr"] >= 4e-3 else [p["lr"], 2 * p["lr"]]
j["phases"] = p["phases"] + j["phases"][2:]
last = p["phases"][-1]["train"]
# Room for arms that learn more slowly; what nobody learned may still come.
last["steps"] = min(1000, max(250, int(1.4 * (p["last"] - p["before"])) + 100)) if p["learned"] == 4 else 900
json.dump(j, open(f"{out}/walk.json", "w"))
print(f"as pilot {p['name']} ({p['learned']} of {len(p['best'])} learned): {[q['train'] for q in j['phases']]}, "
      f"rates {j['learning_rates']}", flush=True)

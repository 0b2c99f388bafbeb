"""Pilot studies of the walk study: the full arm alone, rows of up to 48 tokens, a setting each. pilots.py EXAMPLES OUT"""
import copy
import json
import sys

examples, out = sys.argv[1], sys.argv[2]
base = json.load(open(f"{examples}/walk.json"))


def pilot(name, lr, rows, two_hops=0):
    j = copy.deepcopy(base)
    j["name"] = name
    j["arms"], j["seeds"], j["learning_rates"] = j["arms"][:1], [1], [lr]
    first, hops = j["phases"][:2]
    first["train"]["global_batch_size"], hops["train"]["global_batch_size"] = rows
    j["phases"] = [first, hops]
    if two_hops:
        easier = copy.deepcopy(hops)
        easier["name"] = "two hops"
        easier["train"]["steps"] = two_hops
        for t in easier["tasks"]:
            t["hops"] = [1, 2]
        j["phases"].insert(1, easier)
    hops["train"]["steps"] = 4000
    j["train"]["eval_interval"] = 50
    j["evaluations"] = [e for e in j["evaluations"] if e["name"].startswith("short")]
    for key in ("claims", "gate"):
        j.pop(key)
    json.dump(j, open(f"{out}/{name}.json", "w"))


pilot("a", 2e-3, (512, 340))
pilot("b", 4e-3, (512, 340))
pilot("c", 2e-3, (256, 170))
pilot("d", 2e-3, (512, 340), two_hops=300)

"""A.3: does placement for encoding cost jobs anything before files are encoded? Fifty jobs read, shuffle and write; how many have ended when.

Sizes are drawn as published for the SWIM sample (Facebook 2009, 50 jobs): most jobs have a few blocks, a few have most of the bytes. They are
made here, nothing is copied; each run has the same jobs at the same moments.
"""
import random, statistics, threading, time
from concurrent.futures import ThreadPoolExecutor
from encode import Bench
from load import Load
from report import mean, svg, table, write_csv
from traffic import shuffle

JOBS = 50


def plan(seed, nodes, jobs):
    """Of each job: when it begins, where its tasks are, and how many blocks it reads, shuffles and writes."""
    draw = random.Random(seed)
    made, at = [], 0.0
    for _ in range(jobs):
        at += draw.expovariate(1 / 1.5)
        read = min(12, max(1, round(draw.lognormvariate(0.3, 1.0))))
        made.append({"at": at, "node": draw.choice(nodes), "to": draw.choice(nodes), "read": read, "shuffle": read * draw.choice((0.0, 0.2, 1.0)),
                     "write": max(1, round(read * draw.choice((0.1, 0.5, 1.0))))})
    return made


def a3(options):
    rows, curves = [], {}
    jobs = 12 if options.quick else JOBS
    for number in range(options.runs):
        for policy in ("ear", "file"):
            with Bench(options, policy, [1] * 12) as bench:
                bench.servers.volume("t", "r2>rs-6-3@4095d", 1)
                load, nodes = Load(bench.servers, "t", 6, options.size, 1), sorted(bench.network.rack_of)
                for node in nodes:
                    load.random(node, 0, 3)
                inputs = sorted(load.files)
                bench.network.shape(options.rate)
                begun, ends = time.monotonic(), []
                def job(place, what):
                    time.sleep(max(0.0, begun + what["at"] - time.monotonic()))
                    choose = random.Random(place)
                    for _ in range(what["read"]):
                        bench.servers.cairn(what["node"], "fs", "cat", f"t:{choose.choice(inputs)}")
                    if what["shuffle"] and what["node"] != what["to"]:
                        shuffle(bench.network, what["node"], what["to"], int(what["shuffle"] * options.size))
                    for block in range(what["write"]):
                        bench.servers.cairn(what["to"], "fs", "put", "-", f"t:/d0/out{place}-{block}", stdin=bytes(options.size))
                    ends.append(time.monotonic() - begun)
                with ThreadPoolExecutor(jobs) as pool:
                    for done in [pool.submit(job, place, what) for place, what in enumerate(plan(11 + number, nodes, jobs))]:
                        done.result()
                ends.sort()
                curves.setdefault(policy, []).append(ends)
                rows += [{"run": number, "policy": policy, "job": place + 1, "ended_s": end} for place, end in enumerate(ends)]
                options.say(f"  {policy}: half of {jobs} jobs have ended after {statistics.median(ends):.1f} s, all after {ends[-1]:.1f} s")
        write_csv(f"{options.out}/testbed-jobs.csv", rows)
    curve = {policy: [mean([ends[place] for ends in of]) for place in range(jobs)] for policy, of in curves.items()}
    apart = [100 * (a / b - 1) for a, b in zip(curve["ear"], curve["file"])]
    quarters = [jobs // 4 - 1, jobs // 2 - 1, 3 * jobs // 4 - 1, jobs - 1]
    lines = [[place + 1, f"{curve['file'][place]:.1f}", f"{curve['ear'][place]:.1f}", f"{apart[place]:+.1f}"] for place in quarters]
    text = "### Jobs before encoding\n\n" + table(["jobs that ended", "random s", "EAR s", "apart %"], lines)
    options.tell("testbed-jobs", text + f"\n\n{options.runs} runs; mean of all jobs: {mean(apart):+.1f} % (published: within 5 %).")
    svg(f"{options.out}/testbed-jobs.svg", "Jobs that ended: seconds", "jobs", list(range(1, jobs + 1)), [("random", curve["file"]), ("EAR", curve["ear"])])
